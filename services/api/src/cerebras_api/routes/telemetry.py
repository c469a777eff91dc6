"""What a job printed and measured."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from cerebras_api.context import InContext
from cerebras_contract.jobs import MetricPage
from cerebras_contract.states import FINAL_JOB_STATUSES
from cerebras_contract.wire import LOG_FINAL_HEADER, LOG_NEXT_OFFSET_HEADER
from cerebras_controlplane.db import reading
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.telemetry import logs, metrics

MAX_LOG_BYTES = 8 << 20

Offset = Annotated[int, Query(ge=0, le=2**62)]

router = APIRouter(tags=["telemetry"], prefix="/jobs")


@router.get(
    "/{job_id}/logs",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "Bytes of the log."}},
)
def read_log(
    context: InContext,
    job_id: str,
    offset: Offset = 0,
    limit_bytes: Annotated[int, Query(ge=1, le=MAX_LOG_BYTES)] = 1 << 20,
) -> Response:
    """Bytes of a job's log, exactly as printed; the headers say where to go on and whether it is complete."""
    with reading(context.sessions) as session:
        job = find_job(session, job_id)
        data = logs.read(session, context.blobs, job, offset, limit_bytes)
    next_offset = offset + len(data)
    is_final = job.status in FINAL_JOB_STATUSES and next_offset >= job.log_size_bytes
    headers = {LOG_NEXT_OFFSET_HEADER: str(next_offset), LOG_FINAL_HEADER: "true" if is_final else "false"}
    return Response(
        data,
        media_type="application/octet-stream",
        headers={**headers, "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"},
    )


@router.get("/{job_id}/metrics")
def read_metrics(
    context: InContext,
    job_id: str,
    name: str | None = None,
    after: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> MetricPage:
    """Points of a job's metrics in the order they were recorded."""
    with reading(context.sessions) as session:
        return metrics.page(session, find_job(session, job_id), name, after, limit)
