"""`checkpoint list`, `download`, `inspect`, `convert`. The last two need torch: they are another process."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cerebras_cloud.bundle import readable_size
from cerebras_cloud.cli.output import HomeOption, JobArgument, open_client, print_table, readable_time
from cerebras_cloud.errors import BadInput

LATEST = "latest"
FRAMEWORK = "cerebras_pytorch"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True)
    group.command("list")(list_checkpoints)
    group.command()(download)
    group.command()(inspect)
    group.command()(convert)
    app.add_typer(group, name="checkpoint", help="List, download, inspect and convert checkpoints.")


def list_checkpoints(job: JobArgument, home: HomeOption = None) -> None:
    """List a job's checkpoints."""
    with open_client(home) as client:
        checkpoints = client.checkpoints.list(job)
    rows = [(str(c.step), readable_size(c.size_bytes), readable_time(c.created_at)) for c in checkpoints]
    print_table(("STEP", "SIZE", "SAVED"), rows)


def download(
    job: JobArgument,
    step: Annotated[str, typer.Option(help="A step, or latest.")] = LATEST,
    to: Annotated[Path, typer.Option(help="Folder in which to make step_N.")] = Path("checkpoints"),
    home: HomeOption = None,
) -> None:
    """Download a checkpoint to DIR/step_N, and print that path."""
    if step != LATEST and not step.isdecimal():
        raise BadInput(f"--step {step}: expected a number or {LATEST}.")
    with open_client(home) as client:
        print(client.checkpoints.download(job, None if step == LATEST else int(step), to))


def inspect(
    checkpoint: Annotated[Path, typer.Argument(metavar="DIR", help="A checkpoint, step_N.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what a checkpoint holds, and whether it is undamaged."""
    _run("inspect", str(checkpoint), *(["--json"] if as_json else []))


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A checkpoint, step_N, or a .pt file.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .pt file, or the folder, to write.")],
) -> None:
    """Write a checkpoint as a plain PyTorch state dict, or a state dict as a checkpoint."""
    _run("convert", str(source), str(out))


def _run(*words: str) -> None:
    if find_spec(FRAMEWORK) is None:
        raise BadInput("this needs the package cerebras-emulator-pytorch in this Python environment.")
    command = [sys.executable, "-m", FRAMEWORK, "checkpoint", *words]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
