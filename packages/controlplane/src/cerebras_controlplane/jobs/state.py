"""The states of jobs and stages: which may follow which, and the only functions that change them."""

from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorReport
from cerebras_contract.states import FINAL_JOB_STATUSES, FINAL_STAGE_STATUSES, JobStatus, StageStatus
from cerebras_controlplane.db import now
from cerebras_controlplane.models import Event, Job, Stage

CHECKPOINT_EVENT = "checkpoint"

JOB_TRANSITIONS: dict[JobStatus, set[JobStatus]] = {
    JobStatus.QUEUED: {JobStatus.RUNNING, JobStatus.CANCELLED},
    JobStatus.RUNNING: {JobStatus.CANCELLING, JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED},
    JobStatus.CANCELLING: {JobStatus.CANCELLED, JobStatus.SUCCEEDED},
    JobStatus.SUCCEEDED: set(),
    JobStatus.FAILED: set(),
    JobStatus.CANCELLED: set(),
}

STAGE_TRANSITIONS: dict[StageStatus, set[StageStatus]] = {
    StageStatus.WAITING: {StageStatus.QUEUED, StageStatus.CANCELLED},
    StageStatus.QUEUED: {StageStatus.RUNNING, StageStatus.SKIPPED, StageStatus.CANCELLED},
    StageStatus.RUNNING: {
        StageStatus.QUEUED,  # given back by its worker, or taken from a lost one
        StageStatus.SUCCEEDED,
        StageStatus.SKIPPED,
        StageStatus.FAILED,
        StageStatus.CANCELLED,
    },
    StageStatus.SUCCEEDED: set(),
    StageStatus.SKIPPED: set(),
    StageStatus.FAILED: set(),
    StageStatus.CANCELLED: set(),
}


class ForbiddenTransitionError(Exception):
    """A state was asked for that does not follow the present one: a fault of ours."""


def change_job(session: Session, job: Job, status: JobStatus, message: str, error: ErrorReport | None = None) -> None:
    """Move a job to `status` and record the event; raises `ForbiddenTransitionError`."""
    if status not in JOB_TRANSITIONS[job.status]:
        raise ForbiddenTransitionError(f"job {job.id} is {job.status} and cannot become {status}")
    job.status, job.error = status, error
    if status in FINAL_JOB_STATUSES:
        job.finished_at = now(session)
    record_event(session, job, f"job.{status}", message)


def change_stage(
    session: Session, stage: Stage, status: StageStatus, message: str, error: ErrorReport | None = None
) -> None:
    """Move a stage to `status` and record the event; raises `ForbiddenTransitionError`.

    Whatever the new status, the fencing token goes: the worker that claims next sets its own.
    """
    if status not in STAGE_TRANSITIONS[stage.status]:
        raise ForbiddenTransitionError(
            f"stage {stage.kind} of {stage.job.id} is {stage.status}, cannot become {status}"
        )
    stage.status, stage.error = status, error
    stage.token = stage.lease_expires_at = None
    if status is StageStatus.QUEUED:
        stage.queued_at = now(session)
    if status in FINAL_STAGE_STATUSES:
        stage.finished_at = now(session)
    record_event(session, stage.job, f"{stage.kind}.{status}", message)


def record_event(session: Session, job: Job, kind: str, message: str) -> None:
    """Append to what happened to a job."""
    job.event_sequence += 1
    session.add(
        Event(job_number=job.number, sequence=job.event_sequence, time=now(session), kind=kind, message=message)
    )
