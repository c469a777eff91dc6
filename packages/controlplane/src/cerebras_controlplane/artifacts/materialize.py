"""Lays an artifact into a folder."""

from pathlib import Path

from cerebras_controlplane.artifacts.repository import artifact_of
from cerebras_controlplane.db import Sessions, reading
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.storage.blobs import BlobStore

READ_ONLY_FILE = 0o444
READ_ONLY_FOLDER = 0o555


def materialize(sessions: Sessions, blobs: BlobStore, job_id: str, folder: Path) -> None:
    """Write the files of a job's artifact to a new folder, and make both read-only."""
    with reading(sessions) as session:
        files = artifact_of(session, find_job(session, job_id)).files
    folder.mkdir()
    for file in files:
        blobs.copy_to(file.sha256, folder / file.name)
        (folder / file.name).chmod(READ_ONLY_FILE)
    folder.chmod(READ_ONLY_FOLDER)
