"""Checkpoints that the blob store has acknowledged."""

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.jobs import CheckpointList, CheckpointView
from cerebras_controlplane.db import now
from cerebras_controlplane.models import Checkpoint, Job, StoredFile


def record(session: Session, job: Job, step: int, files: list[StoredFile]) -> None:
    """Announce a checkpoint whose files are blobs; one of a newer attempt replaces an older one's."""
    session.merge(
        Checkpoint(
            job_number=job.number,
            step=step,
            created_at=now(session),
            size_bytes=sum(file.size_bytes for file in files),
            files=files,
        )
    )


def let_go(session: Session, job: Job, keep: int, keep_every: int | None) -> None:
    """Forget all but the newest `keep`, and those at multiples of `keep_every` steps."""
    steps = select(Checkpoint.step).where(Checkpoint.job_number == job.number).order_by(Checkpoint.step.desc())
    old = [step for step in session.scalars(steps.offset(keep)) if keep_every is None or step % keep_every]
    session.execute(delete(Checkpoint).where(Checkpoint.job_number == job.number, Checkpoint.step.in_(old)))


def newest_checkpoint(session: Session, job: Job) -> Checkpoint | None:
    """The one that an attempt goes on from: within a job, attempts only ever go further."""
    query = select(Checkpoint).where(Checkpoint.job_number == job.number)
    return session.scalar(query.order_by(Checkpoint.step.desc()).limit(1))


def list_checkpoints(session: Session, job: Job) -> CheckpointList:
    """A job's checkpoints by step."""
    rows = session.scalars(select(Checkpoint).where(Checkpoint.job_number == job.number).order_by(Checkpoint.step))
    return CheckpointList(
        checkpoints=[
            CheckpointView(
                step=row.step,
                created_at=row.created_at,
                size_bytes=row.size_bytes,
                files=[file.name for file in row.files],
            )
            for row in rows
        ]
    )


def find_checkpoint(session: Session, job: Job, step: int) -> Checkpoint:
    """The checkpoint of a step, or a `ReportedError` (request.not_found)."""
    checkpoint = session.get(Checkpoint, (job.number, step))
    if checkpoint is None:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.NOT_FOUND,
                message=f"job {job.id} has no checkpoint of step {step}",
                advice=f"`cerebras-cloud checkpoint list {job.id}` shows those there are.",
            )
        )
    return checkpoint
