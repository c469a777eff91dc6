"""Claims: a worker takes the best waiting stage, keeps it by heartbeats, and writes only while it is its own."""

import secrets
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import exists, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from cerebras_contract.jobs import JobSpec
from cerebras_contract.states import JobStatus, StageKind, StageStatus
from cerebras_controlplane.db import Sessions, now, writing
from cerebras_controlplane.jobs.state import change_job, change_stage
from cerebras_controlplane.jobs.workers import hear_of_worker
from cerebras_controlplane.models import Stage


@dataclass(frozen=True)
class Claim:
    """One attempt at a stage, and what its worker has to know. `attempt` and `token` fence its writes."""

    job_id: str
    stage_number: int
    kind: StageKind
    attempt: int
    token: str
    worker: str
    spec: JobSpec
    source_key: str
    artifact_key: str | None
    compiled_in_job: bool
    """True if an earlier stage of this job compiled: its log shows the script's beginning already."""


class StageLostError(Exception):
    """The stage is no longer this worker's: another attempt may be running, so nothing more is written."""


class Answer(StrEnum):
    """What a heartbeat is told."""

    GO_ON = "go on"
    CANCEL = "cancel"
    LOST = "lost"


def claim_stage(sessions: Sessions, kind: StageKind, worker: str, lease_seconds: float) -> Claim | None:
    """Take the waiting stage of the highest priority, the oldest first; None if there is none to take."""
    try:
        with writing(sessions) as session:
            stage = _take_best(session, kind)
            return None if stage is None else _start(session, stage, worker, lease_seconds)
    except IntegrityError:  # another worker began to compile the same beside us; the next look sees it
        return None


def _take_best(session: Session, kind: StageKind) -> Stage | None:
    running = aliased(Stage)
    compiles_now = exists().where(
        running.kind == StageKind.COMPILE,
        running.status == StageStatus.RUNNING,
        running.source_key == Stage.source_key,
    )
    best = select(Stage.number).where(Stage.kind == kind, Stage.status == StageStatus.QUEUED)
    if kind is StageKind.COMPILE:
        best = best.where(~compiles_now)
    best = best.order_by(Stage.priority, Stage.number).limit(1)
    while (number := session.scalar(best)) is not None:
        taken = session.execute(
            update(Stage)
            .where(Stage.number == number, Stage.status == StageStatus.QUEUED)
            .values(attempt=Stage.attempt + 1)
        )
        if taken.rowcount == 1:  # type: ignore[attr-defined]
            return session.get_one(Stage, number, populate_existing=True)
    return None


def _start(session: Session, stage: Stage, worker: str, lease_seconds: float) -> Claim:
    job = stage.job
    change_stage(session, stage, StageStatus.RUNNING, f"attempt {stage.attempt} on {worker}")
    if job.status is JobStatus.QUEUED:
        change_job(session, job, JobStatus.RUNNING, f"{stage.kind} has started")
    time = now(session)
    stage.worker, stage.started_at = worker, time
    stage.token, stage.lease_expires_at = secrets.token_hex(16), time + lease_seconds
    hear_of_worker(session, worker, job.id)
    return Claim(
        job_id=job.id,
        stage_number=stage.number,
        kind=stage.kind,
        attempt=stage.attempt,
        token=stage.token,
        worker=worker,
        spec=job.spec,
        source_key=stage.source_key,
        artifact_key=job.artifact_key,
        compiled_in_job=any(other.status is StageStatus.SUCCEEDED for other in job.stages),
    )


def hold(session: Session, claim: Claim) -> Stage:
    """The claimed stage, locked for this transaction; raises `StageLostError` if it is no longer the worker's.

    Every write of a worker goes through here.
    """
    stage = session.scalar(
        select(Stage)
        .where(
            Stage.number == claim.stage_number,
            Stage.status == StageStatus.RUNNING,
            Stage.attempt == claim.attempt,
            Stage.token == claim.token,
        )
        .with_for_update()
    )
    if stage is None:
        raise StageLostError(f"attempt {claim.attempt} at {claim.kind} of {claim.job_id} was taken from {claim.worker}")
    session.refresh(stage.job, with_for_update=True)
    return stage


def renew(sessions: Sessions, claim: Claim, lease_seconds: float) -> Answer:
    """A worker's heartbeat: extend the lease by the database's clock, and hear what became of the job."""
    with writing(sessions) as session:
        try:
            stage = hold(session, claim)
        except StageLostError:
            return Answer.LOST
        stage.lease_expires_at = now(session) + lease_seconds
        hear_of_worker(session, claim.worker, claim.job_id)
        return Answer.CANCEL if stage.job.status is JobStatus.CANCELLING else Answer.GO_ON
