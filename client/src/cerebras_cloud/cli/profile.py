"""`profile`: a job's training steps in device time, as a trace to look at.

The plan is the artifact's; reading it needs torch, so it is another process: `python -m cerebras_wafer profile`.
"""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cerebras_cloud.cli.output import HomeOption, JobArgument, open_client
from cerebras_cloud.errors import BadInput

COMPILER = "cerebras_wafer"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(profile)


def profile(
    job: JobArgument,
    steps: Annotated[str, typer.Option(metavar="FIRST:LAST", help="Steps, both included.")] = "1:1",
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("trace.json"),
    home: HomeOption = None,
) -> None:
    """Write a Chrome and Perfetto trace of a job's steps in simulated time: compute, weights, gradients, input."""
    if find_spec(COMPILER) is None:
        raise BadInput("profile needs the package cerebras-emulator-wafer in this Python environment.")
    with tempfile.TemporaryDirectory(prefix="cerebras-profile-") as folder:
        with open_client(home) as client:
            artifact = client.artifacts.download(job, Path(folder) / "artifact")
        command = [sys.executable, "-m", COMPILER, "profile", str(artifact), "--steps", steps, "--output", str(output)]
        raise typer.Exit(subprocess.run(command, check=False).returncode)
