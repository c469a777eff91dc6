"""`checkpoint list`, `download`, `convert`."""

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
    group.command()(convert)
    app.add_typer(group, name="checkpoint", help="List, download and convert checkpoints.")


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


def convert(
    checkpoint: Annotated[Path, typer.Argument(metavar="DIR", help="A downloaded checkpoint, step_N.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.pt", help="The file to write.")],
) -> None:
    """Write a checkpoint as a plain PyTorch state dict."""
    if find_spec(FRAMEWORK) is None:
        raise BadInput("this needs the package cerebras-emulator-pytorch in this Python environment.")
    command = [sys.executable, "-m", FRAMEWORK, "checkpoint", "convert", str(checkpoint), str(out)]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
