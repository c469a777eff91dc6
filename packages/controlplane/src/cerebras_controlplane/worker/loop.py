"""The claim loop: a worker's one slot. The doorbell and the slow poll both only wake it."""

import queue
import shutil
import signal
import sys
import threading

import structlog
from sqlalchemy.exc import OperationalError

from cerebras_contract.errors import ReportedError
from cerebras_contract.states import QUEUE_OF_STAGE
from cerebras_controlplane.db import writing
from cerebras_controlplane.jobs.claim import claim_stage
from cerebras_controlplane.jobs.reconcile import take_from_predecessor
from cerebras_controlplane.jobs.workers import register_worker
from cerebras_controlplane.log_setup import set_up_logs
from cerebras_controlplane.queue.celery_app import make_listener
from cerebras_controlplane.queue.doorbell import Doorbell, listen
from cerebras_controlplane.sandbox.process import kill_marked
from cerebras_controlplane.settings import read_settings
from cerebras_controlplane.worker.run_folder import own_folder
from cerebras_controlplane.worker.stage import run_stage
from cerebras_controlplane.worker.tools import StageHandler, Tools, open_tools

log = structlog.get_logger()


def serve(handler: StageHandler) -> int:
    """Be a worker until SIGTERM or SIGINT; answers the exit status.

    Stages run in this, the main thread: it outlives every user process, which dies with the thread that
    started it.
    """
    set_up_logs()
    try:
        tools = open_tools(read_settings())
    except ReportedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    _clear_remains(tools)
    bell: Doorbell = queue.SimpleQueue()
    stopping = _stop_on_signals(bell)
    listen(make_listener(tools.settings.broker_url.get_secret_value()), QUEUE_OF_STAGE[handler.kind], bell)
    while not stopping.is_set():
        if not _work_once(tools, handler, stopping):
            _wait_for_bell(bell, tools.settings.poll_seconds)
    return 0


def _clear_remains(tools: Tools) -> None:
    """End, requeue and remove what a killed predecessor of this name left."""
    kill_marked(own_folder(tools))
    shutil.rmtree(own_folder(tools), ignore_errors=True)
    take_from_predecessor(tools.sessions, tools.settings.worker_name, tools.settings.max_attempts)


def _stop_on_signals(bell: Doorbell) -> threading.Event:
    stopping = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopping.set()
        bell.put(None)  # a SimpleQueue may be used in a signal handler

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return stopping


def _work_once(tools: Tools, handler: StageHandler, stopping: threading.Event) -> bool:
    """Do the best waiting stage; False if there was none, or no database to ask."""
    settings = tools.settings
    try:
        with writing(tools.sessions) as session:
            register_worker(session, settings.worker_name, handler.kind, tools.user_python.made_with)
        claim = claim_stage(tools.sessions, handler.kind, settings.worker_name, settings.lease_seconds)
    except OperationalError as error:
        log.warning("cannot reach the database", reason=type(error).__name__)
        return False
    if claim is None:
        return False
    run_stage(tools, handler, claim, stopping)
    return True


def _wait_for_bell(bell: Doorbell, poll_seconds: float) -> None:
    try:
        bell.get(timeout=poll_seconds)
        while True:  # several rings are one wake-up
            bell.get_nowait()
    except queue.Empty:
        return
