"""Files that a job's process has left beside its checkpoints: profiles, `run_summary.json`."""

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from cerebras_api.context import InContext
from cerebras_api.files import file_response
from cerebras_contract.jobs import FileList
from cerebras_controlplane.db import reading
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.telemetry import files

router = APIRouter(tags=["files"], prefix="/jobs")


@router.get("/{job_id}/files")
def list_files(context: InContext, job_id: str) -> FileList:
    """The files that were kept of the job, the newest last."""
    with reading(context.sessions) as session:
        return files.list_files(session, find_job(session, job_id))


@router.get("/{job_id}/files/{name}", response_class=StreamingResponse)
def download_file(context: InContext, job_id: str, name: str) -> StreamingResponse:
    """One of them."""
    with reading(context.sessions) as session:
        stored = files.stored_files(session, find_job(session, job_id))
    return file_response(context.blobs, stored, name)
