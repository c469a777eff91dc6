"""The rest of the HTTP API: bundles, the follow stream, health, errors. All under `/v1`."""

from enum import StrEnum
from typing import Literal

from cerebras_contract.errors import ErrorReport
from cerebras_contract.jobs import JobView, MetricPoint, Sha256
from cerebras_contract.model import ContractModel

API_PREFIX = "/v1"
IDEMPOTENCY_HEADER = "Idempotency-Key"
LOG_NEXT_OFFSET_HEADER = "X-Log-Next-Offset"
LOG_FINAL_HEADER = "X-Log-Final"


class BundleView(ContractModel):
    """An uploaded bundle."""

    sha256: Sha256
    size_bytes: int
    files: int


class ErrorResponse(ContractModel):
    """The body of every answer that is not a success."""

    error: ErrorReport


class Health(ContractModel):
    """`ok` only if database and queue answer."""

    status: Literal["ok", "degraded"]
    database: str
    queue: str
    version: str


class WorkerView(ContractModel):
    """A worker that has been heard of lately."""

    name: str
    stage: str
    alive: bool
    busy_with: str | None
    last_seen: float


class ClusterView(ContractModel):
    workers: list[WorkerView]
    systems: list[str]
    queued: int
    running: int


class StreamEventName(StrEnum):
    """Names of the server-sent events of `GET /v1/jobs/{id}/stream`.

    LOG carries `LogChunk`, METRICS `MetricBatch`, JOB a `JobView` whenever it changed, END the last `JobView`.
    An event's id is a cursor: sent back as `Last-Event-ID` it resumes the stream without a gap or a repeat.
    """

    LOG = "log"
    METRICS = "metrics"
    JOB = "job"
    END = "end"


class LogChunk(ContractModel):
    """Bytes of a job's log, base64, and the offset of the first."""

    offset: int
    data_base64: str


class MetricBatch(ContractModel):
    points: list[MetricPoint]


class StreamEnd(ContractModel):
    job: JobView
