"""Registers and finds artifacts."""

from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.jobs import ArtifactView
from cerebras_controlplane.artifacts.keys import MadeWith, input_key
from cerebras_controlplane.db import now
from cerebras_controlplane.models import Artifact, InputKey, Job, StoredFile


def find_compiled(session: Session, source: str, made_with: MadeWith) -> str | None:
    """The key of the artifact that was compiled from a source key with these versions."""
    known = session.get(InputKey, input_key(source, made_with))
    return None if known is None else known.artifact_key


def register(session: Session, source: str, made_with: MadeWith, artifact_key: str, files: list[StoredFile]) -> None:
    """Keep an artifact whose files are blobs, and which input key leads to it. The first of a key stays."""
    if session.get(Artifact, artifact_key) is None:
        size_bytes = sum(file.size_bytes for file in files)
        session.add(Artifact(artifact_key=artifact_key, created_at=now(session), size_bytes=size_bytes, files=files))
        session.flush()
    session.merge(InputKey(input_key=input_key(source, made_with), artifact_key=artifact_key))


def artifact_of(session: Session, job: Job) -> Artifact:
    """The artifact of a job, or a `ReportedError` (request.not_found)."""
    artifact = None if job.artifact_key is None else session.get(Artifact, job.artifact_key)
    if artifact is None:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.NOT_FOUND,
                message=f"job {job.id} has no artifact",
                advice="It has one once its compile stage is done.",
            )
        )
    return artifact


def view_of(artifact: Artifact) -> ArtifactView:
    """An artifact as the API shows it."""
    return ArtifactView(
        artifact_key=artifact.artifact_key,
        created_at=artifact.created_at,
        size_bytes=artifact.size_bytes,
        files=[file.name for file in artifact.files],
    )
