"""`plan`: does a script's model fit, how fast, at what cost, on which systems; without a job and without a cluster.

The compiler needs torch, so it is another process: `python -m cerebras_pytorch plan`.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cerebras_cloud.cli.output import say
from cerebras_cloud.cli.overrides import effective_configuration
from cerebras_cloud.errors import BadInput, ExitCode
from cerebras_cloud.submission import Submission
from cerebras_contract import planning
from cerebras_contract.errors import ReportedError
from cerebras_contract.systems import is_system_file, load_system

FRAMEWORK = "cerebras_pytorch"
GRACE_SECONDS = 10.0  # in which an interrupted planner ends by itself


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The script, as for `submit`.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the script.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The run configuration, a run.yaml.")] = None,
    root: Annotated[Path | None, typer.Option(help="The working directory. [default: the script's folder]")] = None,
    system: Annotated[str | None, typer.Option(help="Names or files of systems, as in cs-2,my-wse4.yaml.")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes, all systems together, as in 64,128.")] = None,
    num_csx: Annotated[str | None, typer.Option(help="Numbers of systems that share a batch, as in 1,4.")] = None,
    mode: Annotated[str | None, typer.Option(help="auto, weight_streaming or pipelined.")] = None,
    micro_batch: Annotated[str | None, typer.Option(help="auto, explore or a number of samples.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Steps that time and system-hours are for.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set a value of run.yaml.")
    ] = None,
    print_after: Annotated[
        str | None, typer.Option(metavar="PASS", help=f"Print what a pass leaves: {', '.join(planning.PassName)}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compare systems and batches for a script: what fits, how fast, at what cost. Nothing is run or uploaded."""
    submission = Submission(script=script, root=root)
    inside = submission.script_in_bundle()
    steps = [] if max_steps is None else [f"runconfig.max_steps={max_steps}"]
    configuration = effective_configuration(config, [*(assignments or ()), *steps])
    checks: list[tuple[str, str | None, Callable[[str], object]]] = [
        ("--system", _absolute(system), planning.systems),
        ("--batch", batch, planning.whole_numbers),
        ("--num-csx", num_csx, planning.whole_numbers),
        ("--mode", mode, planning.mode_word),
        ("--micro-batch", micro_batch, planning.micro_batch),
        ("--print-after", print_after, planning.pass_name),
    ]
    options = [word for check in checks for word in _checked(*check)]
    options += ["--json"] if as_json else []
    if find_spec(FRAMEWORK) is None:
        raise BadInput("plan needs the package cerebras-emulator-pytorch in this Python environment.")
    with tempfile.TemporaryDirectory(prefix="cerebras-plan-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps(configuration.said()), encoding="utf-8")
        command = [sys.executable, "-m", FRAMEWORK, "plan", "--config", str(file), "--scratch", folder, *options]
        raise typer.Exit(_run([*command, inside, "--", *(arguments or ())], submission.folder))


def _absolute(text: str | None) -> str | None:
    """Systems, with files by absolute path: the planner works in the script's folder. Files are checked here."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    files = [name for name in names if is_system_file(name)]
    for name in files:
        load_system(name)
    return ",".join(str(Path(name).absolute()) if name in files else name for name in names)


def _checked(option: str, text: str | None, parse: Callable[[str], object]) -> list[str]:
    """The option for the planner, which reads it the same way; an error names it as it was typed."""
    if text is None:
        return []
    try:
        parse(text)
    except ReportedError as error:
        advice = f" {error.report.advice}" if error.report.advice else ""
        raise BadInput(f"{option}: {error.report.message}.{advice}") from None
    return [option, text]


def _run(command: list[str], folder: Path) -> int:
    """Run the planner to its end. Where this process is interrupted, so is the planner, before it goes on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=folder)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        _end(process)
        return ExitCode.INTERRUPTED
    if status < 0:
        say(f"error: the planner was killed by {signal.Signals(-status).name}: it may have needed too much memory.")
        return ExitCode.FAILED
    return status


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
