"""What a user submits and what the API says of it."""

from typing import Annotated

from pydantic import Field, NonNegativeInt, StringConstraints

from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.errors import ErrorReport
from cerebras_contract.model import ContractModel
from cerebras_contract.states import JobStatus, StageKind, StageStatus

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class CheckpointReference(ContractModel):
    """A checkpoint of a job."""

    job: str
    step: NonNegativeInt


class JobSpec(ContractModel):
    """A job as submitted. Paths are inside the bundle, with forward slashes."""

    name: str | None = Field(default=None, max_length=200)
    bundle: Sha256
    script: RelativePath
    arguments: list[str] = Field(default_factory=list)
    configuration: RunConfiguration = RunConfiguration()
    configuration_path: RelativePath | None = None
    """Where the bundle holds the file that `configuration` was read from: left out of the input key."""
    from_checkpoint: CheckpointReference | None = None
    """Where training begins, in place of a first step."""


class StageView(ContractModel):
    """A stage as the API shows it. Times are seconds since 1970-01-01 UTC."""

    kind: StageKind
    status: StageStatus
    attempts: int
    worker: str | None = None
    queued_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    error: ErrorReport | None = None


class JobView(ContractModel):
    """A job as the API shows it. Steps and rates are those of the newest progress event, None before it."""

    id: str
    name: str
    status: JobStatus
    script: str
    arguments: list[str]
    system: str
    labels: list[str]
    priority: str
    created_at: float
    finished_at: float | None = None
    stages: list[StageView]
    artifact_key: str | None = None
    step: int | None = None
    max_steps: int | None = None
    wall_samples_per_second: float | None = None
    device_samples_per_second: float | None = None
    error: ErrorReport | None = None


class JobPage(ContractModel):
    """One page of jobs, newest first. `next_cursor` is None on the last one."""

    jobs: list[JobView]
    next_cursor: str | None = None


class MetricPoint(ContractModel):
    """One value: identified by job, name and step; of several attempts the newest wins."""

    name: str
    step: int
    value: float
    time: float
    device_seconds: float | None = None


class MetricPage(ContractModel):
    """Points in the order they were recorded. Ask again with `after=next_after` for the later ones."""

    points: list[MetricPoint]
    next_after: int


class CheckpointView(ContractModel):
    """A checkpoint that the blob store has acknowledged."""

    step: int
    created_at: float
    size_bytes: int
    files: list[str]


class CheckpointList(ContractModel):
    checkpoints: list[CheckpointView]


class FileView(ContractModel):
    """A file that the job's process has left and that was kept: a profile, `run_summary.json`."""

    name: str
    created_at: float
    size_bytes: int


class FileList(ContractModel):
    files: list[FileView]


class ArtifactView(ContractModel):
    """An artifact and its files."""

    artifact_key: str
    created_at: float
    size_bytes: int
    files: list[str]


class JobEvent(ContractModel):
    """What happened to a job, in order; `sequence` grows by one within a job."""

    sequence: int
    time: float
    kind: str
    message: str


class JobEventList(ContractModel):
    events: list[JobEvent]
