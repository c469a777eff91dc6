"""Lines of `events.jsonl`: what a user's process tells the worker, in the order it happened.

Each line has a sequence number that grows by one, so that a reader can tell a gap or a repeat.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, TypeAdapter

from cerebras_contract.model import ContractModel


class _RunEvent(ContractModel):
    """Common part. `time` is wall time, seconds since 1970-01-01 UTC."""

    sequence: int
    time: float


class MetricEvent(_RunEvent):
    """Values of one step. `device_seconds` is simulated time since the job's first step, None on target CPU."""

    kind: Literal["metric"] = "metric"
    step: int
    values: dict[str, float]
    device_seconds: float | None = None


class ProgressEvent(_RunEvent):
    """How far training is. Wall and device rates are never mixed; the device rate is None on target CPU.

    `input_wait_share` is the share of the wall time since the last such event in which the loader was waited for.
    """

    kind: Literal["progress"] = "progress"
    step: int
    max_steps: int | None
    wall_samples_per_second: float
    device_samples_per_second: float | None = None
    input_wait_share: float | None = None


class CheckpointEvent(_RunEvent):
    """A checkpoint is complete in the run directory. `path` is relative to it.

    `keep` and `keep_every` are what `keep_checkpoints` and `keep_checkpoints_every` say: older ones are let go.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    keep: PositiveInt | None = None
    keep_every: PositiveInt | None = None


class ArtifactEvent(_RunEvent):
    """Compilation is finished and the artifact is complete in `compile/`."""

    kind: Literal["artifact"] = "artifact"
    artifact_key: str
    compiled: bool
    seconds: float


class TrainingStartsEvent(_RunEvent):
    """`compile` returned in phase execute. What the process had printed before `log_offset_bytes` is what
    the compile stage printed already."""

    kind: Literal["training_starts"] = "training_starts"
    log_offset_bytes: int


class FileEvent(_RunEvent):
    """A file of the run directory is complete and is to be kept with the job under its last name. `path` is relative
    to the run directory, with forward slashes."""

    kind: Literal["file"] = "file"
    path: str


class WarningEvent(_RunEvent):
    kind: Literal["warning"] = "warning"
    message: str


RunEvent = Annotated[
    MetricEvent | ProgressEvent | CheckpointEvent | ArtifactEvent | TrainingStartsEvent | FileEvent | WarningEvent,
    Field(discriminator="kind"),
]
RUN_EVENT: TypeAdapter[RunEvent] = TypeAdapter(RunEvent)
"""Reads a line. Write one with the event's own `model_dump_json`, which keeps NaN and infinities."""
