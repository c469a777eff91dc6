"""Files that a job's process has left beside its checkpoints: profiles, `run_summary.json`."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cerebras_contract.jobs import FileList, FileView
from cerebras_controlplane.db import now
from cerebras_controlplane.models import Job, JobFile, StoredFile

MAX_FILES = 100


def record(session: Session, job: Job, file: StoredFile) -> bool:
    """Keep a file whose bytes are a blob; one of the same name is replaced. False where the job has too many."""
    known = session.get(JobFile, (job.number, file.name))
    count = session.scalar(select(func.count()).where(JobFile.job_number == job.number)) or 0
    if known is None and count >= MAX_FILES:
        return False
    session.merge(JobFile(job_number=job.number, created_at=now(session), **dict(file)))
    return True


def stored_files(session: Session, job: Job) -> list[StoredFile]:
    """What was kept of a job, by name."""
    rows = session.scalars(select(JobFile).where(JobFile.job_number == job.number).order_by(JobFile.name))
    return [StoredFile(name=row.name, sha256=row.sha256, size_bytes=row.size_bytes) for row in rows]


def list_files(session: Session, job: Job) -> FileList:
    """What can be downloaded, the newest last."""
    query = select(JobFile).where(JobFile.job_number == job.number).order_by(JobFile.created_at, JobFile.name)
    return FileList(
        files=[
            FileView(name=row.name, created_at=row.created_at, size_bytes=row.size_bytes)
            for row in session.scalars(query)
        ]
    )
