"""Finds jobs and shows them as the contract's models."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.jobs import JobEvent, JobEventList, JobPage, JobView, StageView
from cerebras_contract.states import StageStatus
from cerebras_controlplane.jobs.state import CHECKPOINT_EVENT
from cerebras_controlplane.models import Event, Job, Stage


def find_job(session: Session, job_id: str) -> Job:
    """The job, or a `ReportedError` (request.not_found)."""
    job = session.scalar(select(Job).where(Job.id == job_id))
    if job is None:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.NOT_FOUND,
                message=f"there is no job {job_id!r}",
                advice="`cerebras-cloud jobs list` shows the jobs there are.",
            )
        )
    return job


def list_jobs(session: Session, limit: int, cursor: str | None) -> JobPage:
    """Jobs, newest first, from the one after `cursor`."""
    query = select(Job).order_by(Job.number.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(Job.number < _number_of(cursor))
    jobs = session.scalars(query).all()
    next_cursor = str(jobs[limit - 1].number) if len(jobs) > limit else None
    return JobPage(jobs=[view_of(job) for job in jobs[:limit]], next_cursor=next_cursor)


def _number_of(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.REQUEST_INVALID,
                message="the cursor is not one that a page of jobs gave",
                advice="Start again without a cursor.",
            )
        )
    return int(cursor)


def list_events(session: Session, job: Job) -> JobEventList:
    """What happened to a job, in order."""
    rows = session.scalars(select(Event).where(Event.job_number == job.number).order_by(Event.sequence))
    return JobEventList(
        events=[JobEvent(sequence=row.sequence, time=row.time, kind=row.kind, message=row.message) for row in rows]
    )


def count_stages(session: Session, status: StageStatus) -> int:
    """How many stages are in a state."""
    return session.scalars(select(func.count()).select_from(Stage).where(Stage.status == status)).one()


def attempts_without_progress(session: Session, stage: Stage) -> int:
    """How many attempts were begun since the job's last checkpoint; of a stage that saves none, all."""
    last_saved = select(func.max(Event.sequence)).where(
        Event.job_number == stage.job_number, Event.kind == CHECKPOINT_EVENT
    )
    begun = select(func.count()).where(
        Event.job_number == stage.job_number,
        Event.kind == f"{stage.kind}.{StageStatus.RUNNING}",
        Event.sequence > func.coalesce(last_saved.scalar_subquery(), 0),
    )
    return session.scalars(begun).one()


def view_of(job: Job) -> JobView:
    """A job as the API shows it."""
    progress = job.progress
    return JobView(
        id=job.id,
        name=job.name,
        status=job.status,
        script=job.spec.script,
        arguments=job.spec.arguments,
        system=job.system,
        labels=job.spec.configuration.runconfig.job_labels or [],
        priority=job.priority,
        created_at=job.created_at,
        finished_at=job.finished_at,
        stages=[_view_of_stage(stage) for stage in job.stages],
        artifact_key=job.artifact_key,
        step=progress.step if progress else None,
        max_steps=progress.max_steps if progress else None,
        wall_samples_per_second=progress.wall_samples_per_second if progress else None,
        device_samples_per_second=progress.device_samples_per_second if progress else None,
        error=job.error,
    )


def _view_of_stage(stage: Stage) -> StageView:
    return StageView(
        kind=stage.kind,
        status=stage.status,
        attempts=stage.attempt,
        worker=stage.worker,
        queued_at=stage.queued_at,
        started_at=stage.started_at,
        finished_at=stage.finished_at,
        error=stage.error,
    )
