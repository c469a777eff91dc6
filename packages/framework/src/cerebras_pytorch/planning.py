"""Planning without a job: run a script up to `compile`, capture its step once, and plan it in many ways.

Nothing is written where the script is: the run directory is a temporary one, and no artifact is made.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.configuration_reader import read_configuration
from cerebras_contract.errors import ErrorCode
from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_contract.systems import load_system
from cerebras_pytorch.endings import RunStopped
from cerebras_pytorch.launch import never_compiled, run_script
from cerebras_pytorch.log import logger
from cerebras_pytorch.process import Captured, Process, set_current_process
from cerebras_wafer.compiler.pipeline import kernel_graph
from cerebras_wafer.planner.compare import compare
from cerebras_wafer.planner.options import PlanChoices, add_options, choices_of
from cerebras_wafer.planner.table import as_json, as_text

INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add script, configuration and options of `plan` to a command."""
    parser.add_argument("--config", type=Path, help="the run configuration, a run.yaml")
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    add_options(parser)
    parser.add_argument("script", help="the script, which calls cerebras_pytorch.compile")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="[-- ARGUMENTS]", help="arguments of the script")


def plan(arguments: argparse.Namespace) -> int:
    """Plan a script and print the comparison; the exit status.

    Standard output has the comparison only: what the script prints, and the log, go to standard error.
    Raises `ReportedError` where the configuration, a system or the model cannot be used.
    """
    output = _keep_standard_output()
    sys.dont_write_bytecode = True  # nothing is left beside the user's modules
    choices = choices_of(arguments)
    for system in choices.systems or ():
        load_system(system)  # before the script, which takes longer
    _heed_signals()
    folder = Path.cwd()
    try:
        with tempfile.TemporaryDirectory(prefix="cerebras-plan-", dir=arguments.scratch) as scratch:
            words = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
            captured = _capture(Path(scratch), arguments.config, arguments.script, words)
        if captured is None:
            return 1
        os.chdir(folder)  # the script may have gone elsewhere; paths of systems are from here
        _print_comparison(captured, choices, output)
    except RunStopped:
        return INTERRUPTED
    return 0


def _keep_standard_output() -> TextIO:
    """The standard output of this process, which from now on writes to standard error, whatever a script starts."""
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def _heed_signals() -> None:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise RunStopped

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def _capture(scratch: Path, config: Path | None, script: str, arguments: list[str]) -> Captured | None:
    """Run the script up to `compile`. None where it did not get there: why is on standard error."""
    configuration = read_configuration(config) if config else RunConfiguration()
    process = Process(RunDirectory(scratch), stage=StageKind.COMPILE, planning=True)
    said = configuration.said()
    said["runconfig"] = {"target_device": "CSX", **said["runconfig"]}  # as for a submitted job
    process.run_directory.config.write_text(json.dumps(said), encoding="utf-8")
    set_current_process(process)
    ended = run_script(process, script, arguments)
    if process.captured is not None:
        return process.captured
    if isinstance(ended, RunStopped):
        raise ended
    if ended is None or ended.code is ErrorCode.SCRIPT_EXITED:  # any other was told where it happened
        print(f"error: {ended or never_compiled(script)}", file=sys.stderr)  # noqa: T201
    return None


def _print_comparison(captured: Captured, choices: PlanChoices, output: TextIO) -> None:
    started = time.monotonic()
    show = _shown_on(sys.stderr if choices.json else output)
    log = show if choices.print_after else logger.info
    _, graph = kernel_graph(captured.step, captured.options, log, choices.print_after)
    combinations = compare(graph, captured.options, choices, captured.max_steps, show)
    seconds = time.monotonic() - started
    logger.info(
        f"Captured the step in {captured.seconds:.1f} s, planned {len(combinations)} combinations in {seconds:.1f} s"
    )
    print(as_json(combinations) if choices.json else as_text(combinations), file=output, flush=True)


def _shown_on(stream: TextIO) -> Callable[[str], None]:
    return lambda text: print(text, file=stream, flush=True)
