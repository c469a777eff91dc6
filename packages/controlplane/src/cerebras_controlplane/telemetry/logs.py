"""A job's log: one stream of bytes, kept in chunks."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from cerebras_controlplane.models import Job, LogChunk
from cerebras_controlplane.storage.blobs import BlobStore


def append(session: Session, job: Job, sha256: str, size_bytes: int) -> None:
    """Add a chunk, whose blob exists, at the end of the log."""
    session.add(LogChunk(job_number=job.number, offset=job.log_size_bytes, size_bytes=size_bytes, sha256=sha256))
    job.log_size_bytes += size_bytes


def read(session: Session, blobs: BlobStore, job: Job, offset: int, limit_bytes: int) -> bytes:
    """Bytes of the log from `offset` on, at most `limit_bytes`."""
    end = min(offset + limit_bytes, job.log_size_bytes)
    chunks = session.scalars(
        select(LogChunk)
        .where(
            LogChunk.job_number == job.number,
            LogChunk.offset < end,
            LogChunk.offset + LogChunk.size_bytes > offset,
        )
        .order_by(LogChunk.offset)
    )
    return b"".join(
        blobs.read(chunk.sha256, max(0, offset - chunk.offset), min(chunk.size_bytes, end - chunk.offset))
        for chunk in chunks
    )
