"""Listens for rings: a Celery worker in a thread of its own, which only wakes the claim loop."""

import queue
import threading
import time

import structlog
from celery import Celery

from cerebras_controlplane.queue.celery_app import WAKE_TASK

RESTART_SECONDS = 5.0

Doorbell = queue.SimpleQueue[None]

log = structlog.get_logger()


def listen(celery: Celery, queue_name: str, bell: Doorbell) -> None:
    """Put into `bell` whenever the queue is rung, from now on, whatever becomes of Redis.

    Celery runs beside the claim loop, not around it: neither a dead Redis nor Celery's own shutdown can hold
    up a stage, or a worker that is told to stop.
    """

    @celery.task(name=WAKE_TASK)  # type: ignore[untyped-decorator]
    def wake() -> None:
        bell.put(None)

    threading.Thread(target=_consume, args=(celery, queue_name), name="doorbell", daemon=True).start()


def _consume(celery: Celery, queue_name: str) -> None:
    while True:
        worker = celery.WorkController(
            pool="threads",
            concurrency=1,
            queues=queue_name,
            loglevel="WARNING",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        try:
            worker.start()
        except Exception:
            log.exception("the doorbell broke; the poll finds work meanwhile")
        time.sleep(RESTART_SECONDS)
