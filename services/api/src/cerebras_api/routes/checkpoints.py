"""A job's checkpoints."""

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from cerebras_api.context import InContext
from cerebras_api.files import file_response
from cerebras_contract.jobs import CheckpointList
from cerebras_controlplane.db import reading
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.telemetry import checkpoints

router = APIRouter(tags=["checkpoints"], prefix="/jobs")


@router.get("/{job_id}/checkpoints")
def list_checkpoints(context: InContext, job_id: str) -> CheckpointList:
    """The checkpoints that can be downloaded, by step."""
    with reading(context.sessions) as session:
        return checkpoints.list_checkpoints(session, find_job(session, job_id))


@router.get("/{job_id}/checkpoints/{step}/files/{name}", response_class=StreamingResponse)
def download_checkpoint_file(
    context: InContext, job_id: str, step: Annotated[int, Path(ge=0, le=2**53)], name: str
) -> StreamingResponse:
    """One file of a checkpoint."""
    with reading(context.sessions) as session:
        checkpoint = checkpoints.find_checkpoint(session, find_job(session, job_id), step)
    return file_response(context.blobs, checkpoint.files, name)
