"""Faults that are sent to a job: kept with it until the worker of its execute stage has brought them to the run."""

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.faults import SentFault
from cerebras_contract.jobs import JobView
from cerebras_contract.states import FINAL_JOB_STATUSES, JobStatus
from cerebras_controlplane.db import Sessions, writing
from cerebras_controlplane.jobs.repository import find_job, view_of
from cerebras_controlplane.jobs.state import record_event
from cerebras_controlplane.models import Job, JobFault

MAX_FAULTS = 1000


def send_fault(sessions: Sessions, job_id: str, fault: SentFault, idempotency_key: str | None) -> JobView:
    """Send a fault to a job that trains, or that will. A retry under the same key sends no second one.

    Raises `ReportedError` for a job that has ended, or that was sent too many.
    """
    with writing(sessions) as session:
        job = find_job(session, job_id)
        session.refresh(job, with_for_update=True)
        if idempotency_key is not None and _has_key(session, job, idempotency_key):
            return view_of(job)
        if job.status in FINAL_JOB_STATUSES or job.status is JobStatus.CANCELLING:
            raise _conflict(f"job {job.id} is {job.status}", "A fault is for a job that trains, or that will.")
        sent = session.scalar(select(func.count()).where(JobFault.job_number == job.number)) or 0
        if sent >= MAX_FAULTS:
            raise _conflict(f"job {job.id} was sent {MAX_FAULTS} faults already", "That is as many as one job takes.")
        row = JobFault(job_number=job.number, number=sent + 1, fault=fault, idempotency_key=idempotency_key)
        session.add(row)
        record_event(session, job, "fault.sent", _described(fault))
        return view_of(job)


def has_waiting(session: Session, job: Job) -> bool:
    """Whether a fault was sent that no attempt was given so far."""
    query = select(JobFault.number).where(JobFault.job_number == job.number, JobFault.delivered.is_(False))
    return session.scalar(query.limit(1)) is not None


def take_faults(session: Session, job: Job) -> list[SentFault]:
    """The faults that no attempt was given so far; they are this one's now."""
    rows = session.scalars(_faults_of(job).where(JobFault.delivered.is_(False))).all()
    numbers = [row.number for row in rows]
    session.execute(
        update(JobFault).where(JobFault.job_number == job.number, JobFault.number.in_(numbers)).values(delivered=True)
    )
    return [row.fault for row in rows]


def faults_of_steps(session: Session, job: Job) -> list[SentFault]:
    """Those that earlier attempts were given and that are of a step: they hold for every attempt, as those of run.yaml
    do. One without a step has happened."""
    rows = session.scalars(_faults_of(job).where(JobFault.delivered.is_(True)))
    return [row.fault for row in rows if row.fault.step is not None]


def _faults_of(job: Job):  # type: ignore[no-untyped-def]  # a select, whose type SQLAlchemy infers
    return select(JobFault).where(JobFault.job_number == job.number).order_by(JobFault.number)


def _has_key(session: Session, job: Job, key: str) -> bool:
    query = select(JobFault.number).where(JobFault.job_number == job.number, JobFault.idempotency_key == key)
    return session.scalar(query) is not None


def _described(fault: SentFault) -> str:
    said = [f"{name} {value}" for name, value in fault.model_dump(exclude_none=True).items() if name != "kind"]
    return ", ".join([fault.kind, *said])


def _conflict(message: str, advice: str) -> ReportedError:
    return ReportedError(ErrorReport(code=ErrorCode.CONFLICT, message=message, advice=advice))
