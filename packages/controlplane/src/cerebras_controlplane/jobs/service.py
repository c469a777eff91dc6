"""Submit and cancel."""

import secrets

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.jobs import JobSpec, JobView
from cerebras_contract.states import (
    FINAL_JOB_STATUSES,
    JobStatus,
    StageKind,
    StageStatus,
)
from cerebras_controlplane.artifacts.keys import source_key, system_of
from cerebras_controlplane.artifacts.repository import find_compiled
from cerebras_controlplane.db import Sessions, now, writing
from cerebras_controlplane.jobs import finish
from cerebras_controlplane.jobs.repository import find_job, view_of
from cerebras_controlplane.jobs.state import change_job, record_event
from cerebras_controlplane.jobs.workers import live_versions
from cerebras_controlplane.models import Bundle, Job, Stage
from cerebras_controlplane.telemetry.checkpoints import find_checkpoint

DEFAULT_PRIORITY = "p2"


def submit(sessions: Sessions, spec: JobSpec, idempotency_key: str | None) -> tuple[JobView, bool]:
    """Make a job of a spec; answers it and whether it is new.

    The same key with the same spec answers the job made before. Raises `ReportedError`: config.invalid,
    bundle.missing, script.missing, or request.conflict for a key that came with another spec.
    """
    try:
        return _submit(sessions, spec, idempotency_key)
    except IntegrityError:  # the same key was committed beside us: this time it is found
        return _submit(sessions, spec, idempotency_key)


def _submit(sessions: Sessions, spec: JobSpec, idempotency_key: str | None) -> tuple[JobView, bool]:
    with writing(sessions) as session:
        earlier = _submitted_before(session, spec, idempotency_key)
        if earlier is not None:
            return view_of(earlier), False
        job = _make_job(session, spec, idempotency_key)
        _queue_first_stage(session, job)
        return view_of(job), True


def _submitted_before(session: Session, spec: JobSpec, idempotency_key: str | None) -> Job | None:
    if idempotency_key is None:
        return None
    job = session.scalar(select(Job).where(Job.idempotency_key == idempotency_key))
    if job is not None and job.spec != spec:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CONFLICT,
                message=f"the idempotency key was used for another job, {job.id}",
                advice="Send a new key with a new job.",
            )
        )
    return job


def _make_job(session: Session, spec: JobSpec, idempotency_key: str | None) -> Job:
    """The job and its stages, compile before execute; both wait."""
    bundle = _bundle_with_script(session, spec)
    if spec.from_checkpoint is not None:
        find_checkpoint(session, find_job(session, spec.from_checkpoint.job), spec.from_checkpoint.step)
    key = source_key(bundle.files, spec)
    priority = spec.configuration.runconfig.job_priority or DEFAULT_PRIORITY
    job = Job(
        id=f"job-{secrets.token_hex(6)}",
        name=spec.name or spec.script,
        status=JobStatus.QUEUED,
        bundle_sha256=bundle.sha256,
        spec=spec,
        system=system_of(spec),
        priority=priority,
        created_at=now(session),
        idempotency_key=idempotency_key,
        log_size_bytes=0,
        metric_sequence=0,
        event_sequence=0,
    )
    job.stages = [
        Stage(kind=kind, status=StageStatus.WAITING, priority=priority, source_key=key, attempt=0)
        for kind in (StageKind.COMPILE, StageKind.EXECUTE)
    ]
    session.add(job)
    session.flush()
    record_event(session, job, "job.queued", f"submitted {spec.script}")
    return job


def _bundle_with_script(session: Session, spec: JobSpec) -> Bundle:
    bundle = session.get(Bundle, spec.bundle)
    if bundle is None:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.BUNDLE_MISSING,
                message=f"bundle {spec.bundle} was not uploaded",
                advice="Upload it first; `cerebras-cloud submit` does both.",
            )
        )
    if not any(file.name == spec.script for file in bundle.files):
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.SCRIPT_MISSING,
                message=f"the bundle holds no {spec.script!r}",
                advice="Name the script by its path inside the bundle, and see that it is not ignored.",
            )
        )
    return bundle


def _queue_first_stage(session: Session, job: Job) -> None:
    """Queue compile; where its artifact is known already, skip it and queue execute."""
    compile_stage = job.stages[0]
    finish.queue(session, compile_stage, "submitted")
    for made_with in live_versions(session):
        artifact_key = find_compiled(session, compile_stage.source_key, made_with.for_job(job.spec))
        if artifact_key is not None:
            return finish.skip(session, compile_stage, artifact_key)
    return None


def cancel(sessions: Sessions, job_id: str) -> JobView:
    """End a job that has not started, ask a running one to end; a job that has ended stays as it is."""
    with writing(sessions) as session:
        job = find_job(session, job_id)
        # Stages are locked before their job everywhere, so that two transactions cannot wait for each other.
        stages = session.scalars(
            select(Stage).where(Stage.job_number == job.number).order_by(Stage.number).with_for_update()
        ).all()
        session.refresh(job, with_for_update=True)
        if job.status in FINAL_JOB_STATUSES or job.status is JobStatus.CANCELLING:
            return view_of(job)
        if any(stage.status is StageStatus.RUNNING for stage in stages):
            change_job(session, job, JobStatus.CANCELLING, "asked to end")
        else:
            queued = next(stage for stage in stages if stage.status is StageStatus.QUEUED)
            finish.cancel(session, queued, "cancelled before it started")
        return view_of(job)
