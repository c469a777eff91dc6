"""Lays into an attempt's run directory what it goes on from: a checkpoint, and the summary of those before."""

from pathlib import Path

from sqlalchemy.orm import Session

from cerebras_contract.jobs import CheckpointReference
from cerebras_contract.run_directory import RunDirectory
from cerebras_controlplane.db import reading, writing
from cerebras_controlplane.jobs.claim import Claim, hold
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.jobs.state import record_event
from cerebras_controlplane.models import Checkpoint
from cerebras_controlplane.telemetry.checkpoints import find_checkpoint, newest_checkpoint
from cerebras_controlplane.telemetry.files import stored_files
from cerebras_controlplane.worker.tools import Tools


def lay_checkpoint(tools: Tools, claim: Claim, directory: RunDirectory) -> None:
    """The newest that the job has, else the one of another job that it was submitted with; none where neither is.

    Raises `ReportedError` if the other job's is there no more.
    """
    with reading(tools.sessions) as session:
        checkpoint = newest_checkpoint(session, find_job(session, claim.job_id))
        reference = claim.spec.from_checkpoint
        whose = "its own"
        if checkpoint is None and reference is not None:
            checkpoint, whose = _named(session, reference), reference.job
    if checkpoint is None:
        return
    _copy(tools, checkpoint, directory.checkpoint(checkpoint.step))
    with writing(tools.sessions) as session:
        job = hold(session, claim).job
        record_event(session, job, f"{claim.kind}.resumes", f"from the checkpoint of step {checkpoint.step}, {whose}")


def lay_summary(tools: Tools, claim: Claim, directory: RunDirectory) -> None:
    """What is known of the attempts before, so that this one is written behind them."""
    with reading(tools.sessions) as session:
        kept = stored_files(session, find_job(session, claim.job_id))
    for file in kept:
        if file.name == directory.summary.name:
            tools.blobs.copy_to(file.sha256, directory.summary)


def _named(session: Session, reference: CheckpointReference) -> Checkpoint:
    return find_checkpoint(session, find_job(session, reference.job), reference.step)


def _copy(tools: Tools, checkpoint: Checkpoint, folder: Path) -> None:
    folder.mkdir()
    for file in checkpoint.files:
        tools.blobs.copy_to(file.sha256, folder / file.name)
