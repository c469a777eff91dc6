"""A job's artifact."""

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from cerebras_api.context import InContext
from cerebras_api.files import file_response
from cerebras_contract.jobs import ArtifactView
from cerebras_controlplane.artifacts.repository import artifact_of, view_of
from cerebras_controlplane.db import reading
from cerebras_controlplane.jobs.repository import find_job

router = APIRouter(tags=["artifacts"], prefix="/jobs")


@router.get("/{job_id}/artifact")
def show_artifact(context: InContext, job_id: str) -> ArtifactView:
    """The artifact that the job runs on."""
    with reading(context.sessions) as session:
        return view_of(artifact_of(session, find_job(session, job_id)))


@router.get("/{job_id}/artifact/files/{name}", response_class=StreamingResponse)
def download_artifact_file(context: InContext, job_id: str, name: str) -> StreamingResponse:
    """One file of the artifact."""
    with reading(context.sessions) as session:
        artifact = artifact_of(session, find_job(session, job_id))
    return file_response(context.blobs, artifact.files, name)
