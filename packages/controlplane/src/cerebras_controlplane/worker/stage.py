"""Runs one claimed stage: prepare, start the user's process, watch it, keep what it left, end the stage."""

import math
import signal
import threading
import time
from contextlib import closing
from enum import StrEnum

import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from cerebras_contract.errors import ERROR_PROPERTIES, ErrorCode, ErrorReport, ReportedError
from cerebras_contract.run_directory import LAUNCH_MODULE, RunDirectory
from cerebras_contract.states import StageKind
from cerebras_controlplane.db import writing
from cerebras_controlplane.jobs import finish
from cerebras_controlplane.jobs.claim import Answer, Claim, StageLostError, hold
from cerebras_controlplane.jobs.repository import attempts_without_progress
from cerebras_controlplane.models import Stage
from cerebras_controlplane.queue.outbox import ring_noted
from cerebras_controlplane.sandbox.process import Launch, ProcessEnd, UserProcess, start
from cerebras_controlplane.telemetry import files
from cerebras_controlplane.worker.faults import FaultFile
from cerebras_controlplane.worker.lease import Lease
from cerebras_controlplane.worker.outputs import keep_summary, read_result
from cerebras_controlplane.worker.pump import Pump
from cerebras_controlplane.worker.run_folder import run_directory
from cerebras_controlplane.worker.tools import StageHandler, Tools

LOG_END_BYTES = 2000
LOG_END_LINES = 10
DATABASE_RETRY_SECONDS = 1.0

log = structlog.get_logger()


class Ending(StrEnum):
    """Why a stage ended, as far as the worker decided it."""

    BY_ITSELF = "by itself"
    CANCELLED = "cancelled"
    DRAINED = "the worker was told to stop"
    KILLED = "something killed the process"


def run_stage(tools: Tools, handler: StageHandler, claim: Claim, stopping: threading.Event) -> None:
    """Do a claimed stage to its end. Whatever goes wrong ends in a state of the stage, or in its loss."""
    log.info("stage begins", job=claim.job_id, stage=str(claim.kind), attempt=claim.attempt)
    with Lease(tools.sessions, claim, tools.settings.lease_seconds) as lease:
        try:
            if not handler.settle(tools, claim):
                _run(tools, handler, claim, lease, stopping)
        except StageLostError as lost:
            log.warning("stage lost", reason=str(lost))
        except ReportedError as error:
            _fail(tools, claim, error.report)
        except OperationalError as error:
            log.error("stage left to the reconciler", job=claim.job_id, reason=type(error).__name__)
        except Exception:
            log.exception("stage failed by a fault of ours", job=claim.job_id)
            message = f"the {claim.kind} worker failed"
            advice = f"See logs/{tools.settings.worker_name}.log in the cluster's home."
            _fail(tools, claim, ErrorReport(code=ErrorCode.INTERNAL, message=message, advice=advice))
    ring_noted(tools.sessions, tools.celery)
    log.info("stage ends", job=claim.job_id, stage=str(claim.kind))


def _fail(tools: Tools, claim: Claim, error: ErrorReport) -> None:
    try:
        with writing(tools.sessions) as session:
            finish.fail(session, hold(session, claim), error)
    except StageLostError as lost:
        log.warning("stage lost", reason=str(lost))


def _run(tools: Tools, handler: StageHandler, claim: Claim, lease: Lease, stopping: threading.Event) -> None:
    with run_directory(tools, claim) as directory:
        handler.prepare(tools, claim, directory)
        with closing(Pump(tools, claim, directory)) as pump, closing(FaultFile(tools, claim, directory)) as faults:
            process = start(_launch(tools, claim, directory), tools.settings.sandbox)
            try:
                ending = _watch(tools, process, pump, faults, lease, stopping)
            finally:
                end = process.end_all()
            error = _error_of(end, directory, pump)
            if ending is Ending.BY_ITSELF and end.signal and error and error.code is ErrorCode.PROCESS_KILLED:
                ending = Ending.KILLED
            while not _ended(tools, handler, claim, directory, pump, ending, error):
                if stopping.is_set():
                    return
                time.sleep(DATABASE_RETRY_SECONDS)


def _launch(tools: Tools, claim: Claim, directory: RunDirectory) -> Launch:
    phase = ["-m", LAUNCH_MODULE, "--phase", str(claim.kind), "--run-dir", str(directory.root)]
    return Launch(
        user_python=tools.user_python,
        arguments=[*phase, claim.spec.script, *claim.spec.arguments],
        folder=directory.root,
        working_folder=directory.code,
        read_only=[directory.compile] if claim.kind is StageKind.EXECUTE else [],
        log=directory.log_of(claim.kind),
    )


def _watch(
    tools: Tools, process: UserProcess, pump: Pump, faults: FaultFile, lease: Lease, stopping: threading.Event
) -> Ending:
    """Carry what the process leaves until it ends, or until its time after being asked to end is over."""
    ending, asked, kill_at = Ending.BY_ITSELF, False, math.inf
    while process.wait(tools.settings.pump_seconds) is None and time.monotonic() < kill_at:
        _carry(pump, faults)
        if lease.answer is Answer.LOST:
            break
        if ending is Ending.BY_ITSELF:
            ending, grace_seconds = _wish(tools, lease, stopping)
            kill_at = time.monotonic() + grace_seconds
        asked = asked or (ending is not Ending.BY_ITSELF and process.ask_to_end())
    return ending


def _wish(tools: Tools, lease: Lease, stopping: threading.Event) -> tuple[Ending, float]:
    """Whether the process is to end, and how long it may take for that."""
    if lease.answer is Answer.CANCEL:
        return Ending.CANCELLED, tools.settings.grace_seconds
    if stopping.is_set():
        return Ending.DRAINED, tools.settings.drain_seconds
    return Ending.BY_ITSELF, math.inf


def _carry(pump: Pump, faults: FaultFile) -> None:
    try:
        pump.carry()
        faults.carry()
    except OperationalError as error:
        # The files keep what could not be carried; the next round reads it again.
        log.warning("cannot reach the database", reason=type(error).__name__)


def _error_of(end: ProcessEnd, directory: RunDirectory, pump: Pump) -> ErrorReport | None:
    """Why the process did not succeed; None if it did."""
    result = read_result(directory)
    if result is not None and result.status == "succeeded" and end.exit_status == 0:
        return None
    if result is not None and result.error is not None:
        return result.error
    last_lines = pump.log_end(LOG_END_BYTES).splitlines()[-LOG_END_LINES:]
    return ErrorReport(
        code=ErrorCode.PROCESS_KILLED,
        message="\n".join(
            [f"the user's process ended by {end} before the script did; the end of its log:", *last_lines]
        ),
        advice="SIGKILL usually means that memory ran out." if end.signal is signal.SIGKILL else None,
    )


def _ended(
    tools: Tools,
    handler: StageHandler,
    claim: Claim,
    directory: RunDirectory,
    pump: Pump,
    ending: Ending,
    error: ErrorReport | None,
) -> bool:
    """Carry the rest and end the stage, the log's length and the state in one transaction; False if the
    database is away, which must not turn a finished run into a lost one."""
    try:
        pump.carry_rest()
        if error is None:
            handler.complete(tools, claim, directory)
        summary = keep_summary(tools.blobs, directory)
        with writing(tools.sessions) as session:
            if summary is not None:
                files.record(session, hold(session, claim).job, summary)
            _finish(session, hold(session, claim), ending, error, tools.settings.max_attempts)
    except OperationalError as away:
        log.warning("cannot reach the database", reason=type(away).__name__)
        return False
    return True


def _finish(session: Session, stage: Stage, ending: Ending, error: ErrorReport | None, max_attempts: int) -> None:
    if error is None:
        finish.succeed(session, stage, "the script did its part")
    elif ending is Ending.CANCELLED:
        finish.cancel(session, stage, "cancelled while running")
    elif ending is Ending.DRAINED:
        finish.give_back(session, stage, "its worker was told to stop")
    elif ending is Ending.KILLED and attempts_without_progress(session, stage) == 0:
        finish.give_back(session, stage, "its process was killed, and goes on from its newest checkpoint")
    elif ERROR_PROPERTIES[error.code].retried and attempts_without_progress(session, stage) < max_attempts:
        finish.give_back(session, stage, error.message)
    else:
        finish.fail(session, stage, error)
