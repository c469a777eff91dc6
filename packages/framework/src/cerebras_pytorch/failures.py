"""What a script's exception is reported as."""

import errno
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.run_directory import StageResult
from cerebras_contract.states import StageKind
from cerebras_pytorch.capture.stacks import first_line, place_of_traceback
from cerebras_pytorch.endings import RunStopped
from cerebras_pytorch.memory import is_out_of_memory

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_disk_full(error: BaseException) -> bool:
    """Whether the system has refused room on a disk, or what is left of a quota."""
    return isinstance(error, OSError) and error.errno in FULL_DISK


def known_failure(error: BaseException, stage: StageKind | None) -> ReportedError | None:
    """A failure of the run itself that an exception stands for; None for an exception of the script's own.

    What is out of memory in phase compile is told by the limits of that.
    """
    if is_disk_full(error):
        assert isinstance(error, OSError)
        which = f"{error.filename}: " if error.filename else ""
        code, message = ErrorCode.RUN_DISK_FULL, f"the run cannot write any more: {which}{error.strerror}"
        advice = "Checkpoints that were saved before are as they were. Make room, then go on from the last one."
    elif is_out_of_memory(error) and stage is not StageKind.COMPILE:
        code = ErrorCode.RUN_OUT_OF_MEMORY
        message = f"the run asked for more memory than there is: {first_line(error)}"
        advice = (
            "Run on a machine with more memory, or add swap; or make the batch or the model smaller. Keep no tensor of"
            " one step for later: its whole graph stays in memory (append loss.item(), not loss)."
        )
    else:
        return None
    place = place_of_traceback(error.__traceback__)
    file, line = place if place else (None, None)
    return ReportedError(ErrorReport(code=code, message=message, file=file, line=line, advice=advice))


def raised_report(error: BaseException, trace: TracebackType | None) -> ErrorReport:
    """The report of an exception of the script's: its last line and its place, from the frames of `trace`."""
    frames = traceback.extract_tb(trace)
    last = traceback.format_exception_only(type(error), error)[-1].strip()
    code_folder = Path.cwd()
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(code_folder)] or frames
    place = own[-1] if own else None
    file, line = (os.path.relpath(place.filename), place.lineno) if place else (None, None)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = os.path.relpath(error.filename), error.lineno
    advice = None
    if isinstance(error, ModuleNotFoundError):
        advice = (
            f"It has to be among the script's files, or installed for {sys.executable}, which runs them;"
            " `cerebras-cloud up --user-python` chooses another one."
        )
    return ErrorReport(code=ErrorCode.SCRIPT_RAISED, message=last, file=file, line=line, advice=advice)


def exited_report(exit_: SystemExit) -> ErrorReport | None:
    """The report of `sys.exit` with another status than 0; None where the script says that it is done."""
    if exit_.code in (None, 0):
        return None
    return ErrorReport(code=ErrorCode.SCRIPT_EXITED, message=f"the script called sys.exit({exit_.code!r})")


def result_by_hand(error: BaseException, last_step: int) -> StageResult:
    """How a run by hand ended that an exception ended."""
    if isinstance(error, RunStopped | KeyboardInterrupt):
        return StageResult(status="stopped", last_step=last_step)
    if isinstance(error, ReportedError):
        report: ErrorReport | None = error.report
    elif isinstance(error, SystemExit):
        report = exited_report(error)
    else:
        report = raised_report(error, error.__traceback__)
    return StageResult(status="failed" if report else "succeeded", error=report, last_step=last_step)
