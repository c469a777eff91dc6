"""Jobs: submitted, looked at, cancelled."""

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Header, Query, Response

from cerebras_api.context import InContext
from cerebras_contract.faults import SentFault
from cerebras_contract.jobs import JobEventList, JobPage, JobSpec, JobView
from cerebras_contract.wire import IDEMPOTENCY_HEADER
from cerebras_controlplane.db import reading
from cerebras_controlplane.jobs import faults, repository, service
from cerebras_controlplane.queue.outbox import ring_noted

IdempotencyKey = Annotated[str | None, Header(alias=IDEMPOTENCY_HEADER, min_length=1, max_length=200)]

router = APIRouter(tags=["jobs"], prefix="/jobs")


@router.post("", status_code=201, responses={200: {"description": "The job that this key made before."}})
def submit_job(
    context: InContext,
    spec: JobSpec,
    response: Response,
    after_answer: BackgroundTasks,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Submit a job. With an idempotency key a repeated request makes no second one."""
    job, is_new = service.submit(context.sessions, spec, idempotency_key)
    response.status_code = 201 if is_new else 200
    after_answer.add_task(ring_noted, context.sessions, context.celery)
    return job


@router.get("")
def list_jobs(
    context: InContext, limit: Annotated[int, Query(ge=1, le=500)] = 50, cursor: str | None = None
) -> JobPage:
    """Jobs, newest first."""
    with reading(context.sessions) as session:
        return repository.list_jobs(session, limit, cursor)


@router.get("/{job_id}")
def show_job(context: InContext, job_id: str) -> JobView:
    """A job and its stages."""
    with reading(context.sessions) as session:
        return repository.view_of(repository.find_job(session, job_id))


@router.post("/{job_id}/cancel")
def cancel_job(context: InContext, job_id: str) -> JobView:
    """Ask a job to end; one that has ended stays as it is."""
    return service.cancel(context.sessions, job_id)


@router.post("/{job_id}/faults", status_code=202)
def send_fault(context: InContext, job_id: str, fault: SentFault, idempotency_key: IdempotencyKey = None) -> JobView:
    """Send a fault to a job that trains, or that will: at a step, or at the next one that begins."""
    return faults.send_fault(context.sessions, job_id, fault, idempotency_key)


@router.get("/{job_id}/events")
def list_events(context: InContext, job_id: str) -> JobEventList:
    """What happened to a job, in order."""
    with reading(context.sessions) as session:
        return repository.list_events(session, repository.find_job(session, job_id))
