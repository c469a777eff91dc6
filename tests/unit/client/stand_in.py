"""A stand-in for the API: answers by the contract, keeps what it was sent, and fails where a test says so."""

import asyncio
import base64
import hashlib
import itertools
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_contract.jobs import CheckpointList, CheckpointView, JobSpec, JobView, MetricPage, MetricPoint, StageView
from cerebras_contract.states import JobStatus, StageKind, StageStatus
from cerebras_contract.wire import BundleView, ErrorResponse, LogChunk, MetricBatch, StreamEnd, StreamEventName

API_KEY = "the-key-of-the-stand-in"
PING = b": ping\n\n"
JOB_ID = "job-000000000001"


class Cut(Exception):
    """Ends a response in its middle: the server closes the connection."""


def job_view(status: JobStatus, error: ErrorReport | None = None) -> JobView:
    stage = StageStatus(status) if status is not JobStatus.CANCELLING else StageStatus.RUNNING
    return JobView(
        id=JOB_ID, name="train", status=status, script="train.py", arguments=[], system="cs-2", labels=[],
        priority="p2", created_at=1000.0, finished_at=1010.0, step=3, max_steps=3, error=error,
        artifact_key="cs_1", stages=[StageView(kind=StageKind.EXECUTE, status=stage, attempts=1)],
    )  # fmt: skip


def story(log: bytes, end: JobView, chunk_bytes: int = 7) -> list[bytes]:
    """The stream of a job: its log in chunks, a metric after each, and its end; a comment between all."""
    events: list[tuple[StreamEventName, str]] = [(StreamEventName.JOB, job_view(JobStatus.RUNNING).model_dump_json())]
    for step, offset in enumerate(range(0, len(log), chunk_bytes), start=1):
        data = base64.b64encode(log[offset : offset + chunk_bytes]).decode()
        events.append((StreamEventName.LOG, LogChunk(offset=offset, data_base64=data).model_dump_json()))
        point = MetricPoint(name="loss", step=step, value=1 / step, time=1000.0 + step)
        events.append((StreamEventName.METRICS, MetricBatch(points=[point]).model_dump_json()))
    events.append((StreamEventName.END, StreamEnd(job=end).model_dump_json()))
    return [f"id: {n}\nevent: {name}\ndata: {data}\n\n".encode() for n, (name, data) in enumerate(events)]


@dataclass
class StandIn:
    """What the API knows, what it was asked, and how it shall fail."""

    events: list[bytes] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    """Files whose bytes arrive changed."""
    faults: deque[int] = field(default_factory=deque)
    """For each of the next requests: a status to answer with after doing what was asked, or 0 for none."""
    cuts: deque[int] = field(default_factory=deque)
    """For each of the next streams and files: after how many bytes the connection is dropped."""
    bundles: dict[str, bytes] = field(default_factory=dict)
    specs: dict[str, JobSpec] = field(default_factory=dict)
    """The jobs made, by idempotency key."""
    sent_faults: dict[str, str] = field(default_factory=dict)
    """By idempotency key."""
    metrics: dict[str, float] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    holds: bool = False
    """Streams stay open after what they have, as for a job that runs."""
    resumed_from: list[str | None] = field(default_factory=list)

    def body(self, data: bytes) -> Response:
        cut = self.cuts.popleft() if self.cuts else len(data) + 1

        async def pieces() -> AsyncIterator[bytes]:
            yield data[:cut]
            if cut <= len(data):
                raise Cut

        return StreamingResponse(pieces(), headers={"Content-Length": str(len(data))})


def refusal(code: ErrorCode, message: str, status: int) -> Response:
    body = ErrorResponse(error=ErrorReport(code=code, message=message))
    return Response(body.model_dump_json(), status, media_type="application/json")


def build_app(stand_in: StandIn) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def check(request: Request, call_next):
        stand_in.requests.append(f"{request.method} {request.url.path}")
        if request.headers.get("authorization") != f"Bearer {API_KEY}":
            return refusal(ErrorCode.AUTHENTICATION_FAILED, "this API key is not known", 401)
        response = await call_next(request)
        fault = stand_in.faults.popleft() if stand_in.faults else 0
        return Response("a proxy's page", fault) if fault else response

    _add_submission(app, stand_in)
    _add_reading(app, stand_in)
    return app


@contextmanager
def serve(state: StandIn) -> Iterator[str]:
    """Serve on a free port of the loopback, in a thread; the URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # connections wait here until the server takes them
        server = uvicorn.Server(uvicorn.Config(build_app(state), log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        state.holds = False
        server.should_exit = True
        thread.join()


def _add_submission(app: FastAPI, stand_in: StandIn) -> None:
    @app.get("/v1/bundles/{sha256}")
    async def find_bundle(sha256: str) -> Response:
        if sha256 not in stand_in.bundles:
            return refusal(ErrorCode.NOT_FOUND, "no such bundle", 404)
        view = BundleView(sha256=sha256, size_bytes=len(stand_in.bundles[sha256]), files=1)
        return Response(view.model_dump_json())

    @app.put("/v1/bundles/{sha256}")
    async def put_bundle(sha256: str, request: Request) -> Response:
        data = b"".join([chunk async for chunk in request.stream()])
        stand_in.bundles[sha256] = data
        assert hashlib.sha256(data).hexdigest() == sha256
        return Response(BundleView(sha256=sha256, size_bytes=len(data), files=1).model_dump_json(), 201)

    @app.post("/v1/jobs")
    async def create(request: Request) -> Response:
        spec = JobSpec.model_validate_json(await request.body())
        stand_in.specs[request.headers["idempotency-key"]] = spec
        return Response(job_view(JobStatus.QUEUED).model_dump_json(), 201)

    @app.post("/v1/jobs/{job_id}/faults")
    async def send_fault(job_id: str, request: Request) -> Response:
        stand_in.sent_faults[request.headers["idempotency-key"]] = (await request.body()).decode()
        return Response(job_view(JobStatus.RUNNING).model_dump_json(), 202)


def _add_reading(app: FastAPI, stand_in: StandIn) -> None:
    @app.get("/v1/jobs/{job_id}")
    async def get_job(job_id: str) -> Response:
        if job_id != JOB_ID:
            return refusal(ErrorCode.NOT_FOUND, f"there is no job {job_id}", 404)
        return Response(job_view(JobStatus.RUNNING).model_dump_json())

    @app.post("/v1/jobs/{job_id}/cancel")
    async def cancel(job_id: str) -> Response:
        return Response(job_view(JobStatus.CANCELLING).model_dump_json())

    @app.get("/v1/jobs/{job_id}/stream")
    async def stream(request: Request) -> Response:
        cursor = request.headers.get("last-event-id")
        stand_in.resumed_from.append(cursor)
        first = 0 if cursor is None else int(cursor) + 1
        pings = itertools.repeat(PING)
        data = b"".join(itertools.chain(*zip(stand_in.events[first:], pings, strict=False)))
        return StreamingResponse(held(data)) if stand_in.holds else stand_in.body(data)

    async def held(data: bytes) -> AsyncIterator[bytes]:
        yield data
        while stand_in.holds:
            yield PING
            await asyncio.sleep(0.05)

    @app.get("/v1/jobs/{job_id}/metrics")
    async def metrics(after: int) -> Response:
        """One point a page, so that a reader has to ask on."""
        points = [MetricPoint(name=n, step=1, value=v, time=1.0) for n, v in stand_in.metrics.items()]
        page = points[after : after + 1]
        return Response(MetricPage(points=page, next_after=after + len(page)).model_dump_json())

    @app.get("/v1/jobs/{job_id}/checkpoints")
    async def checkpoints() -> Response:
        names = sorted(stand_in.files)
        found = [CheckpointView(step=step, created_at=1, size_bytes=1, files=names) for step in (2, 3) if names]
        return Response(CheckpointList(checkpoints=found).model_dump_json())

    @app.get("/v1/jobs/{job_id}/checkpoints/{step}/files/{name:path}")
    async def file(name: str) -> Response:
        data = stand_in.files[name]
        response = stand_in.body(data[:-1] + b"!" if name in stand_in.damaged else data)
        response.headers["ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        return response
