"""The outbox: queues to be rung, noted in the transaction that made the work and rung after its commit."""

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from cerebras_controlplane.db import Sessions, now, reading, writing
from cerebras_controlplane.models import Ring
from cerebras_controlplane.queue.celery_app import WAKE_TASK

log = structlog.get_logger()


def note_ring(session: Session, queue: str) -> None:
    """Note that a queue is to be rung once this transaction is committed."""
    session.add(Ring(queue=queue, created_at=now(session)))


def ring_noted(sessions: Sessions, celery: Celery) -> None:
    """Ring what is noted and strike it out. With Redis away the notes stay, and workers poll meanwhile."""
    with reading(sessions) as session:
        noted = [(ring.number, ring.queue) for ring in session.scalars(select(Ring))]
    if not noted:
        return
    try:
        for queue in sorted({queue for _, queue in noted}):
            celery.send_task(WAKE_TASK, queue=queue, retry=False, ignore_result=True, expires=60)
    except OperationalError as error:
        log.warning("cannot ring, workers find the work by polling", reason=type(error).__name__)
        return
    with writing(sessions) as session:
        session.execute(delete(Ring).where(Ring.number.in_([number for number, _ in noted])))
