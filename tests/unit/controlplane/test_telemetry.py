import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controlplane.factories import make_job

from cerebras_contract.events import MetricEvent, ProgressEvent, WarningEvent
from cerebras_controlplane.db import Sessions, reading, writing
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.models import StoredFile
from cerebras_controlplane.storage.blobs import BlobStore
from cerebras_controlplane.telemetry import checkpoints, files, logs, metrics
from cerebras_controlplane.telemetry.events_reader import read_event_lines


def metric(step: int, **values: float) -> MetricEvent:
    return MetricEvent(sequence=step, time=1.0, step=step, values=values)


def record(sessions: Sessions, job_id: str, *events: MetricEvent) -> None:
    with writing(sessions) as session:
        metrics.record(session, find_job(session, job_id), list(events))


def points(sessions: Sessions, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[str, int, float]]:
    with reading(sessions) as session:
        page = metrics.page(session, find_job(session, job_id), None, after, limit)
    return [(point.name, point.step, point.value) for point in page.points]


def test_a_newer_attempt_replaces_a_value_and_is_seen_again(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    record(sessions, job_id, metric(1, loss=3.0), metric(2, loss=2.0))
    record(sessions, job_id, metric(1, loss=2.9))
    assert points(sessions, job_id) == [("loss", 2, 2.0), ("loss", 1, 2.9)]
    assert points(sessions, job_id, after=2) == [("loss", 1, 2.9)]


def test_more_values_than_one_statement_holds(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    record(sessions, job_id, *(metric(step, loss=float(step), accuracy=0.5) for step in range(1200)))
    assert len(points(sessions, job_id, limit=5000)) == 2400


def test_values_keep_every_bit_that_matters(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    exact = {"a": math.inf, "b": -math.inf, "c": 5e-324, "d": 1.7976931348623157e308, "e": 0.1}
    record(sessions, job_id, metric(1, nan=math.nan, **exact))
    kept = {name: value for name, _, value in points(sessions, job_id)}
    assert math.isnan(kept.pop("nan"))
    assert kept == exact


def test_a_job_has_so_many_files_at_most_and_a_newer_one_replaces_its_name(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    with writing(sessions) as session:
        job = find_job(session, job_id)
        kept = [files.record(session, job, StoredFile(name=str(n), sha256="a", size_bytes=n)) for n in range(101)]
        assert files.record(session, job, StoredFile(name="7", sha256="b", size_bytes=70))
    assert kept == [True] * 100 + [False]
    with reading(sessions) as session:
        job = find_job(session, job_id)
        assert len(files.list_files(session, job).files) == 100
        assert next(file for file in files.stored_files(session, job) if file.name == "7").sha256 == "b"


def test_the_log_is_one_stream_across_chunks(sessions: Sessions, blobs: BlobStore) -> None:
    job_id = make_job(sessions)
    chunks = [b"abc", b"defgh", b"", b"i" * 10]
    for chunk in chunks:
        with writing(sessions) as session:
            if chunk:
                logs.append(session, find_job(session, job_id), blobs.put_bytes(chunk), len(chunk))
    whole = b"".join(chunks)
    with reading(sessions) as session:
        job = find_job(session, job_id)
        for start in range(len(whole) + 2):
            for limit in (1, 4, 100):
                assert logs.read(session, blobs, job, start, limit) == whole[start : start + limit]


def line(event: MetricEvent | ProgressEvent | WarningEvent) -> bytes:
    return event.model_dump_json().encode()


def test_good_lines_are_read_and_repeats_left_out() -> None:
    lines = [line(metric(1, loss=math.nan)), line(metric(2, loss=1.0)), line(metric(2, loss=1.0))]
    read = read_event_lines(lines, after=0)
    assert [event.sequence for event in read.events] == [1, 2]
    assert read.unreadable == 0
    assert read_event_lines(lines, after=2).events == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b'{"kind":"metric"}',
        b'{"kind":"shell","sequence":1,"time":1}',
        line(metric(2**60, loss=1.0)),
        line(metric(-1, loss=1.0)),
        line(metric(1, **{"a\nb": 1.0})),
        line(metric(1, **{"x" * 201: 1.0})),
        line(MetricEvent(sequence=1, time=math.nan, step=1, values={})),
        line(MetricEvent(sequence=1, time=1.0, step=1, values={}, device_seconds=math.inf)),
        line(ProgressEvent(sequence=1, time=1.0, step=1, max_steps=2**70, wall_samples_per_second=1.0)),
        line(ProgressEvent(sequence=1, time=1.0, step=1, max_steps=1, wall_samples_per_second=math.nan)),
    ],
)
def test_bad_lines_are_counted_and_left_out(bad: bytes) -> None:
    read = read_event_lines([bad, line(metric(5, loss=1.0))], after=-1)
    assert [event.sequence for event in read.events] == [5]
    assert read.unreadable == 1


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_can_be_read(lines: list[bytes]) -> None:
    read = read_event_lines(lines, after=-1)
    assert len(read.events) + read.unreadable <= len(lines)


def save(sessions: Sessions, job_id: str, *steps: int) -> None:
    with writing(sessions) as session:
        job = find_job(session, job_id)
        for step in steps:
            checkpoints.record(session, job, step, [])


def test_the_newest_checkpoints_are_kept_and_those_at_multiples(sessions: Sessions) -> None:
    job_id, other_id, empty_id = make_job(sessions), make_job(sessions), make_job(sessions)
    save(sessions, other_id, 1, 2)
    save(sessions, job_id, 3, 4, 5, 6, 7, 12)
    with writing(sessions) as session:
        checkpoints.let_go(session, find_job(session, job_id), keep=2, keep_every=5)
    with reading(sessions) as session:
        job, other = find_job(session, job_id), find_job(session, other_id)
        assert [one.step for one in checkpoints.list_checkpoints(session, job).checkpoints] == [5, 7, 12]
        assert [one.step for one in checkpoints.list_checkpoints(session, other).checkpoints] == [1, 2]
        newest = checkpoints.newest_checkpoint(session, job)
        assert newest is not None
        assert newest.step == 12
        assert checkpoints.newest_checkpoint(session, find_job(session, empty_id)) is None
