"""Runs a script as a stage of a job: `python -m cerebras_pytorch.launch --phase PHASE --run-dir DIR SCRIPT [args]`.

It knows no service: everything goes in and out through the run directory.
"""

import argparse
import runpy
import sys
import traceback
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import TracebackType

from cerebras_contract.configuration_reader import read_configuration
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.run_directory import RunDirectory, StageResult
from cerebras_contract.states import StageKind
from cerebras_pytorch.endings import CompilePhaseEnd, RunStopped
from cerebras_pytorch.failures import exited_report, raised_report
from cerebras_pytorch.limits import compile_limits
from cerebras_pytorch.process import Process, set_current_process
from cerebras_pytorch.settings import resolve
from cerebras_pytorch.signals import heed_signals


def main() -> int:
    """Run the stage, leave `result.json`, and return the exit status."""
    arguments = _parse(sys.argv[1:])
    directory = RunDirectory(arguments.run_dir.resolve())
    process = Process(directory, stage=StageKind(arguments.phase))
    set_current_process(process)
    process.reserve_room()
    heed_signals(process)
    error = run_script(process, arguments.script, arguments.arguments)
    result = _result(process, error)
    with suppress(OSError):  # the log's disk may be full
        sys.stdout.flush()
        if result.error and error is None:
            print(result.error, file=sys.stderr)  # noqa: T201 (the user's log)
    process.write_result(result)
    return 1 if result.status == "failed" else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cerebras_pytorch.launch", allow_abbrev=False)
    parser.add_argument("--phase", choices=list(StageKind), required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def run_script(process: Process, script: str, arguments: list[str]) -> ErrorReport | RunStopped | None:
    """Run the script to its end; what went wrong, if anything did, is in the log already."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        process.configuration = read_configuration(process.run_directory.config)
        with _limits(process):
            runpy.run_path(script, run_name="__main__")
    except CompilePhaseEnd:
        return None
    except RunStopped as stopped:
        return stopped
    except ReportedError as error:
        with suppress(OSError):
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.report
    except SystemExit as exit_:
        return _exit_report(exit_)
    except BaseException as error:
        return _raised_report(error)
    return None


def _limits(process: Process) -> AbstractContextManager[None]:
    """Where a script is run to be compiled, all that it does up to `compile` counts."""
    if process.stage == StageKind.EXECUTE:
        return nullcontext()
    return compile_limits(process, resolve(process.configuration.runconfig))


def _result(process: Process, error: ErrorReport | RunStopped | None) -> StageResult:
    step, key = process.last_step, process.artifact_key
    if process.stage == StageKind.COMPILE and key is not None:
        return StageResult(status="succeeded", artifact_key=key)
    if isinstance(error, RunStopped):
        return StageResult(status="stopped", last_step=step, artifact_key=key)
    if error is None and key is None:
        error = never_compiled(sys.argv[0])
    status = "failed" if error else "succeeded"
    return StageResult.model_validate({"status": status, "error": error, "last_step": step, "artifact_key": key})


def never_compiled(script: str) -> ErrorReport:
    """The report of a script that came to its end without what it was run for."""
    return ErrorReport(
        code=ErrorCode.SCRIPT_NEVER_COMPILED,
        message="the script ended without calling cerebras_pytorch.compile",
        file=script,
        advice="A job compiles one training step; call compile inside `with cbt.init_context()`.",
    )


def _exit_report(exit_: SystemExit) -> ErrorReport | None:
    if isinstance(exit_.code, str):
        print(exit_.code, file=sys.stderr)  # noqa: T201 (as Python does)
    return exited_report(exit_)


def _raised_report(error: BaseException) -> ErrorReport:
    """Print the user's part of the traceback, and report its last line and place."""
    trace = _user_traceback(error.__traceback__)
    with suppress(OSError):
        traceback.print_exception(type(error), error, trace)
    return raised_report(error, trace)


def _user_traceback(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that started the script."""
    starters = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in starters:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main())
