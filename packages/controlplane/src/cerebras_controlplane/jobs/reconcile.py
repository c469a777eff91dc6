"""Puts right what nobody else will: stages of lost workers, queues that were not rung."""

import threading

import structlog
from celery import Celery
from sqlalchemy import ColumnElement, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_contract.states import StageStatus
from cerebras_controlplane.db import Sessions, now, reading, writing
from cerebras_controlplane.jobs import finish
from cerebras_controlplane.jobs.repository import attempts_without_progress
from cerebras_controlplane.models import Stage
from cerebras_controlplane.queue.outbox import ring_noted
from cerebras_controlplane.settings import Settings

SWEEPS_PER_LEASE = 6

log = structlog.get_logger()


def sweep_until(stop: threading.Event, sessions: Sessions, celery: Celery, settings: Settings) -> None:
    """Sweep until `stop` is set. After a gap of its own (a start, a suspended machine, a database that was
    away) it waits one lease before it takes any: the workers may have been just as cut off."""
    interval_seconds = settings.lease_seconds / SWEEPS_PER_LEASE
    last_seen = patient_until = 0.0
    while not stop.wait(interval_seconds):
        try:
            with reading(sessions) as session:
                time = now(session)
            if time - last_seen > 3 * interval_seconds:
                patient_until = time + settings.lease_seconds
            last_seen = time
            if time >= patient_until:
                take_from_lost_workers(sessions, settings.max_attempts)
            ring_noted(sessions, celery)
        except OperationalError as error:
            log.warning("the database does not answer", reason=type(error).__name__)


def take_from_lost_workers(sessions: Sessions, max_attempts: int) -> None:
    """Requeue the stages whose lease has run out; after `max_attempts` without progress they fail (worker.lost)."""
    with writing(sessions) as session:
        _take_where(session, Stage.lease_expires_at < now(session), max_attempts)


def take_from_predecessor(sessions: Sessions, worker: str, max_attempts: int) -> None:
    """The same for a worker that has just started, and whose name still holds a stage: it was killed."""
    with writing(sessions) as session:
        _take_where(session, Stage.worker == worker, max_attempts)


def _take_where(session: Session, condition: ColumnElement[bool], max_attempts: int) -> None:
    running = select(Stage).where(Stage.status == StageStatus.RUNNING, condition)
    for stage in session.scalars(running.order_by(Stage.number).with_for_update()).all():
        _take(session, stage, max_attempts)


def _take(session: Session, stage: Stage, max_attempts: int) -> None:
    session.refresh(stage.job, with_for_update=True)
    lost = f"worker {stage.worker} was lost in attempt {stage.attempt}"
    log.warning("stage taken from a lost worker", job=stage.job.id, stage=str(stage.kind), worker=stage.worker)
    if attempts_without_progress(session, stage) < max_attempts:
        return finish.give_back(session, stage, lost)
    return finish.fail(
        session,
        stage,
        ErrorReport(
            code=ErrorCode.WORKER_LOST,
            message=f"{lost}, the last of {max_attempts} without a checkpoint in between",
            advice="See `cerebras-cloud status` and the worker's log, then submit the job again.",
        ),
    )
