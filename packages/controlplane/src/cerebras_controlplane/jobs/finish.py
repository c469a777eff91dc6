"""How a stage ends, and what follows for its job: the next stage, or the job's own end.

Each function is one step of a transaction; the caller holds the stage and commits.
"""

from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorReport
from cerebras_contract.states import (
    QUEUE_OF_STAGE,
    JobStatus,
    StageStatus,
)
from cerebras_controlplane.jobs.state import change_job, change_stage
from cerebras_controlplane.models import Stage
from cerebras_controlplane.queue.outbox import note_ring


def queue(session: Session, stage: Stage, reason: str) -> None:
    """The stage waits for a worker from now on."""
    change_stage(session, stage, StageStatus.QUEUED, reason)
    note_ring(session, QUEUE_OF_STAGE[stage.kind])


def succeed(session: Session, stage: Stage, message: str) -> None:
    """The stage did its work."""
    change_stage(session, stage, StageStatus.SUCCEEDED, message)
    _go_on(session, stage)


def skip(session: Session, stage: Stage, artifact_key: str) -> None:
    """The artifact exists, so there is nothing to compile."""
    stage.job.artifact_key = artifact_key
    change_stage(session, stage, StageStatus.SKIPPED, f"artifact {artifact_key} exists already")
    _go_on(session, stage)


def fail(session: Session, stage: Stage, error: ErrorReport) -> None:
    """The stage failed for good, and its job with it; a job that is being cancelled is cancelled."""
    if stage.job.status is JobStatus.CANCELLING:
        return cancel(session, stage, "ended while being cancelled")
    change_stage(session, stage, StageStatus.FAILED, error.message, error)
    _cancel_waiting(session, stage)
    return change_job(session, stage.job, JobStatus.FAILED, error.message, error)


def cancel(session: Session, stage: Stage, message: str) -> None:
    """The stage and its job end because somebody asked for it."""
    change_stage(session, stage, StageStatus.CANCELLED, message)
    _cancel_waiting(session, stage)
    change_job(session, stage.job, JobStatus.CANCELLED, message)


def give_back(session: Session, stage: Stage, reason: str) -> None:
    """The stage goes back to its queue, for a job that is still wanted."""
    if stage.job.status is JobStatus.CANCELLING:
        return cancel(session, stage, reason)
    return queue(session, stage, reason)


def _go_on(session: Session, stage: Stage) -> None:
    """Queue the stage that waited for this one, or end the job."""
    job = stage.job
    waiting = next((other for other in job.stages if other.status is StageStatus.WAITING), None)
    if waiting is None:
        change_job(session, job, JobStatus.SUCCEEDED, "all stages are done")
    elif job.status is JobStatus.CANCELLING:
        cancel(session, waiting, "cancelled before it started")
    else:
        queue(session, waiting, f"follows {stage.kind}")


def _cancel_waiting(session: Session, ended: Stage) -> None:
    for stage in ended.job.stages:
        if stage.status is StageStatus.WAITING:
            change_stage(session, stage, StageStatus.CANCELLED, f"{ended.kind} did not succeed")
