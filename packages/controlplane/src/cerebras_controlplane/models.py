"""All state: one table a class, in the order a job meets them. Times are seconds since 1970-01-01 UTC."""

from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import JSON, BigInteger, Double, Enum, ForeignKey, Index, Integer, MetaData, text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

from cerebras_contract.errors import ErrorReport
from cerebras_contract.events import ProgressEvent
from cerebras_contract.faults import SentFault
from cerebras_contract.jobs import JobSpec
from cerebras_contract.model import ContractModel
from cerebras_contract.states import JobStatus, StageKind, StageStatus


class StoredFile(ContractModel):
    """A file whose bytes are the blob `sha256`. `name` is relative, with forward slashes."""

    name: str
    sha256: str
    size_bytes: int


class JsonOf(TypeDecorator[Any]):
    """A pydantic value in a JSON column."""

    impl = JSON
    cache_ok = True

    def __init__(self, shape: Any) -> None:
        super().__init__(none_as_null=True)
        self.shape = shape
        self._adapter = TypeAdapter(shape)

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self._adapter.dump_python(value, mode="json")

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self._adapter.validate_python(value)


class MetricValue(TypeDecorator[float]):
    """A float in which SQLite keeps NaN too, as NULL."""

    impl = Double
    cache_ok = True

    @override
    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return None if value is None or value != value else value

    @override
    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        return float("nan") if value is None else value


_COMPILING = "kind = 'compile' AND status = 'running'"


def _text_of(values: type[StrEnum]) -> Enum:
    return Enum(values, native_enum=False, length=20, values_callable=lambda kinds: [kind.value for kind in kinds])


class Base(DeclarativeBase):
    """Constraint names are spelled out, so that migrations can name them on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy, which wants a plain dict
        float: Double(),
        int: BigInteger().with_variant(Integer(), "sqlite"),
        list[StoredFile]: JsonOf(list[StoredFile]),
        ErrorReport: JsonOf(ErrorReport),
        ProgressEvent: JsonOf(ProgressEvent),
        SentFault: JsonOf(SentFault),
        JobSpec: JsonOf(JobSpec),
        JobStatus: _text_of(JobStatus),
        StageKind: _text_of(StageKind),
        StageStatus: _text_of(StageStatus),
    }


class Bundle(Base):
    """An uploaded bundle; `files` are its members, hashed one by one for the input key."""

    __tablename__ = "bundles"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    files: Mapped[list[StoredFile]]
    created_at: Mapped[float]


class Job(Base):
    """A job. Only `jobs.state.change_state` assigns `status`."""

    __tablename__ = "jobs"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    """Grows with every job: the order of the list and its cursor."""
    id: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    status: Mapped[JobStatus]
    bundle_sha256: Mapped[str] = mapped_column(ForeignKey("bundles.sha256"))
    spec: Mapped[JobSpec]
    system: Mapped[str]
    priority: Mapped[str]
    created_at: Mapped[float]
    finished_at: Mapped[float | None]
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    artifact_key: Mapped[str | None]
    progress: Mapped[ProgressEvent | None]
    error: Mapped[ErrorReport | None]
    log_size_bytes: Mapped[int] = mapped_column(default=0)
    """Length of the job's log so far; final in the transaction that makes `status` final."""
    metric_sequence: Mapped[int] = mapped_column(default=0)
    event_sequence: Mapped[int] = mapped_column(default=0)

    stages: Mapped[list["Stage"]] = relationship(back_populates="job", order_by="Stage.number", lazy="selectin")


class Stage(Base):
    """A part of a job that one worker does. `attempt` and `token` fence the writes of its present worker."""

    __tablename__ = "stages"
    __table_args__ = (
        Index("ix_stages_claim", "kind", "status", "priority", "number"),
        # What is the same is compiled by one worker at a time: the others then find the artifact.
        Index(
            "uq_stages_compiling",
            "source_key",
            unique=True,
            sqlite_where=text(_COMPILING),
            postgresql_where=text(_COMPILING),
        ),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), index=True)
    kind: Mapped[StageKind]
    status: Mapped[StageStatus]
    priority: Mapped[str]
    source_key: Mapped[str]
    """The input key less the versions of the worker: what is compiled, known at submit."""
    attempt: Mapped[int] = mapped_column(default=0)
    token: Mapped[str | None]
    worker: Mapped[str | None]
    lease_expires_at: Mapped[float | None]
    queued_at: Mapped[float | None]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    error: Mapped[ErrorReport | None]

    job: Mapped[Job] = relationship(back_populates="stages")


class Event(Base):
    """What happened to a job, in order."""

    __tablename__ = "events"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)
    time: Mapped[float]
    kind: Mapped[str]
    message: Mapped[str]


class Ring(Base):
    """The outbox: a queue that is to be rung. The row goes when the broker has taken the message."""

    __tablename__ = "outbox"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - a number is never used twice

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    queue: Mapped[str]
    created_at: Mapped[float]


class Worker(Base):
    """A worker that was heard of, the versions in its user's Python, and what generated code is for."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[StageKind]
    last_seen: Mapped[float]
    busy_with: Mapped[str | None]
    compiler_version: Mapped[str]
    torch_version: Mapped[str]
    processor: Mapped[str]


class Artifact(Base):
    """What compile left, by artifact key."""

    __tablename__ = "artifacts"

    artifact_key: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[float]
    size_bytes: Mapped[int]
    files: Mapped[list[StoredFile]]


class InputKey(Base):
    """Which artifact an input key was compiled to."""

    __tablename__ = "input_keys"

    input_key: Mapped[str] = mapped_column(primary_key=True)
    artifact_key: Mapped[str] = mapped_column(ForeignKey("artifacts.artifact_key"))


class LogChunk(Base):
    """A stretch of a job's log: the bytes are a blob."""

    __tablename__ = "log_chunks"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    offset: Mapped[int] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    sha256: Mapped[str]


class Metric(Base):
    """One value. `sequence` grows within a job with each record, also when a newer attempt replaces one."""

    __tablename__ = "metrics"
    __table_args__ = (Index("ix_metrics_sequence", "job_number", "sequence"),)

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(MetricValue, nullable=True)
    time: Mapped[float]
    device_seconds: Mapped[float | None]
    sequence: Mapped[int]


class JobFile(Base):
    """A file that a job's process has left beside its checkpoints; a newer one of the same name replaces it."""

    __tablename__ = "job_files"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str]
    size_bytes: Mapped[int]
    created_at: Mapped[float]


class JobFault(Base):
    """A fault that was sent to a job; `delivered` once the run directory of an attempt has it."""

    __tablename__ = "job_faults"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """From 1 within a job, in the order in which they were sent."""
    fault: Mapped[SentFault]
    idempotency_key: Mapped[str | None]
    delivered: Mapped[bool] = mapped_column(default=False)


class Checkpoint(Base):
    """A checkpoint whose files the blob store has acknowledged."""

    __tablename__ = "checkpoints"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    created_at: Mapped[float]
    size_bytes: Mapped[int]
    files: Mapped[list[StoredFile]]
