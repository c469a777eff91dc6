"""Following a job: whatever the network does, every byte once and in order."""

import base64
import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.conftest import AT_ONCE
from tests.unit.client.stand_in import JOB_ID, job_view, story

from cerebras_cloud.client import Client
from cerebras_cloud.connection import Endpoint
from cerebras_cloud.errors import ApiError, ConnectionLost
from cerebras_cloud.stream import ServerEvent, parse_events
from cerebras_contract.jobs import JobView
from cerebras_contract.states import JobStatus
from cerebras_contract.wire import LogChunk, MetricBatch, StreamEnd

LOG = bytes(range(256)) + b"\r\n\xe2\x80\xa8 and \n\n more"
STORY = story(LOG, job_view(JobStatus.SUCCEEDED))


def followed(client: Client) -> tuple[bytes, list[int], list[object]]:
    """The log, the steps of the metrics, and everything else that a follow gives."""
    events = list(client.jobs.follow(JOB_ID))
    chunks = [event for event in events if isinstance(event, LogChunk)]
    assert [chunk.offset for chunk in chunks] == list(range(0, len(LOG), 7))
    steps = [point.step for event in events if isinstance(event, MetricBatch) for point in event.points]
    others = [event for event in events if isinstance(event, JobView | StreamEnd)]
    return b"".join(base64.b64decode(chunk.data_base64) for chunk in chunks), steps, others


@given(st.lists(st.integers(1, 40), min_size=1))
def test_events_do_not_depend_on_how_the_bytes_arrive(sizes):
    data = b": hello\n\n" + b"".join(STORY)
    ends = list(itertools.takewhile(lambda end: end < len(data), itertools.accumulate(itertools.cycle(sizes))))
    chunks = [data[begin:end] for begin, end in itertools.pairwise([0, *ends, len(data)])]
    assert list(parse_events(chunks)) == list(parse_events([data]))
    assert len(list(parse_events(chunks))) == 1 + len(STORY)


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"id: 1\nevent: log\ndata: {}\n\n", [ServerEvent("1", "log", "{}")]),
        (b"id:1\r\ndata:a\r\ndata: b\r\n\r\n", [ServerEvent("1", "message", "a\nb")]),
        (b"data: one\xe2\x80\xa8line\x0b\n\n", [ServerEvent(None, "message", "one\u2028line\x0b")]),
        (b": ping\n\nid: 7\n\n", [None]),
        (b"data: whole\n\ndata: cut", [ServerEvent(None, "message", "whole")]),
        (b"data: whole\n\ndata: cut\n", [ServerEvent(None, "message", "whole")]),
        (b"", []),
    ],
)
def test_events_are_read_as_the_standard_says(data, events):
    assert list(parse_events([data])) == events


def test_a_job_is_followed_from_its_first_byte_to_its_end(client, stand_in):
    stand_in.events = STORY
    log, steps, others = followed(client)
    assert log == LOG
    assert steps == list(range(1, len(steps) + 1))
    assert others == [job_view(JobStatus.RUNNING), StreamEnd(job=job_view(JobStatus.SUCCEEDED))]
    assert stand_in.resumed_from == [None]


@pytest.mark.parametrize("cuts", [[1], [0, 0, 0], [900], [173] * 200, list(range(1, 1500, 37))])
def test_dropped_connections_leave_no_gap_and_no_repeat(client, stand_in, cuts):
    stand_in.events = STORY
    stand_in.cuts.extend(cuts)
    log, steps, others = followed(client)
    assert log == LOG
    assert Counter(steps) == Counter(range(1, len(steps) + 1))
    assert len(others) == 2
    assert len(stand_in.resumed_from) > 1


def test_a_follow_outlives_an_api_that_restarts(client, stand_in):
    stand_in.events = STORY
    stand_in.faults.extend([503, 502, 504])
    assert followed(client)[0] == LOG


def test_a_longer_outage_is_said_once_and_the_job_followed_on(client, stand_in):
    stand_in.events = STORY
    stand_in.faults.extend([503] * 40)
    said: list[str] = []
    events = list(client.jobs.follow(JOB_ID, said.append))
    assert isinstance(events[-1], StreamEnd)
    assert len(said) == 1
    assert "does not answer" in said[0]


def test_events_of_a_newer_server_are_passed_over(client, stand_in):
    news = b"id: 0\nevent: weather\ndata: sunny\n\n"
    stand_in.events = [news, *STORY[1:]]
    assert followed(client)[0] == LOG


def test_a_follow_without_contact_gives_up(stand_in, endpoint):
    stand_in.faults.extend([503] * 100)
    impatient = Client(endpoint, replace(AT_ONCE, lost_after_seconds=0))
    with impatient as client, pytest.raises(ConnectionLost, match=r"no contact.*cerebras-cloud status"):
        list(client.jobs.follow(JOB_ID))


def test_a_follow_that_is_refused_does_not_try_again(stand_in, endpoint):
    with Client(Endpoint(endpoint.url, "another-key"), AT_ONCE) as client, pytest.raises(ApiError):
        list(client.jobs.follow(JOB_ID))
    assert len(stand_in.requests) == 1
