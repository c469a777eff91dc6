"""The follow stream: everything once, in order, and resumed anywhere without a gap or a repeat."""

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.integration.workers.harness import tar_of

from cerebras_contract.events import MetricEvent
from cerebras_contract.states import StageKind
from cerebras_controlplane.artifacts import repository as artifacts
from cerebras_controlplane.artifacts.keys import MadeWith
from cerebras_controlplane.db import Sessions, writing
from cerebras_controlplane.jobs import finish
from cerebras_controlplane.jobs.claim import Claim, claim_stage, hold
from cerebras_controlplane.jobs.workers import register_worker
from cerebras_controlplane.settings import Settings
from cerebras_controlplane.storage.blobs import BlobStore
from cerebras_controlplane.telemetry import logs, metrics

CHUNKS = [b"caf\xc3", b"\xa9\n", bytes(range(256)), b"x" * 200_000]


@dataclass(frozen=True)
class Received:
    name: str
    id: str
    data: Any


def claim(sessions: Sessions, kind: StageKind) -> Claim:
    with writing(sessions) as session:
        register_worker(session, "w", kind, MadeWith(compiler="1", torch="1"))
    taken = claim_stage(sessions, kind, "w", lease_seconds=600)
    assert taken is not None
    return taken


@pytest.fixture
def finished_job(client: TestClient, sessions: Sessions, settings: Settings) -> str:
    """A job that printed `CHUNKS` and measured, as the workers record it."""
    bundle = tar_of({"train.py": b""})
    sha256 = hashlib.sha256(bundle).hexdigest()
    client.put(f"/v1/bundles/{sha256}", content=bundle)
    job_id: str = client.post("/v1/jobs", json={"bundle": sha256, "script": "train.py"}).json()["id"]
    compile_claim = claim(sessions, StageKind.COMPILE)
    with writing(sessions) as session:
        artifacts.register(session, compile_claim.source_key, MadeWith(compiler="1", torch="1"), "cs_1", [])
        finish.skip(session, hold(session, compile_claim), "cs_1")
    execute_claim, blobs = claim(sessions, StageKind.EXECUTE), BlobStore(settings.blob_folder)
    for step, chunk in enumerate(CHUNKS):
        with writing(sessions) as session:
            job = hold(session, execute_claim).job
            logs.append(session, job, blobs.put_bytes(chunk), len(chunk))
            values = {"loss": float("nan") if step == 1 else float(step)}
            metrics.record(session, job, [MetricEvent(sequence=step, time=0.0, step=step, values=values)])
    with writing(sessions) as session:
        finish.succeed(session, hold(session, execute_claim), "done")
    return job_id


def follow(client: TestClient, job_id: str, last_event_id: str | None = None) -> list[Received]:
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    answer = client.get(f"/v1/jobs/{job_id}/stream", headers=headers)
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    received = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            received.append(Received(fields["event"], fields["id"], json.loads(fields["data"])))
    return received


def log_in(events: list[Received]) -> bytes:
    return b"".join(base64.b64decode(event.data["data_base64"]) for event in events if event.name == "log")


def points_in(events: list[Received]) -> list[tuple[int, Any]]:
    batches = [event.data["points"] for event in events if event.name == "metrics"]
    return [(point["step"], point["value"]) for batch in batches for point in batch]


def test_a_follower_sees_everything_once_and_the_end(client: TestClient, finished_job: str) -> None:
    events = follow(client, finished_job)
    assert log_in(events) == b"".join(CHUNKS)
    assert points_in(events) == [(0, 0.0), (1, "NaN"), (2, 2.0), (3, 3.0)]
    assert [event.name for event in events][-1] == "end"
    assert events[-1].data["job"]["status"] == "succeeded"


def test_after_any_event_the_stream_resumes_without_gap_or_repeat(client: TestClient, finished_job: str) -> None:
    whole = follow(client, finished_job)
    for cut in range(len(whole)):
        rest = follow(client, finished_job, whole[cut].id)
        assert log_in(whole[: cut + 1]) + log_in(rest) == b"".join(CHUNKS)
        assert len(points_in(whole[: cut + 1]) + points_in(rest)) == len(CHUNKS)


def test_a_cursor_that_is_none_is_refused(client: TestClient, finished_job: str) -> None:
    answer = client.get(f"/v1/jobs/{finished_job}/stream", headers={"Last-Event-ID": "x"})
    assert answer.status_code == 422
