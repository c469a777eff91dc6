"""`profile`: a job's training steps in device time, as a trace to look at.

One of steps as they were is a file that the job has left. Without one it is made of the artifact's plan; reading that
needs torch, so it is another process: `python -m cerebras_wafer profile`.
"""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cerebras_cloud.cli.output import HomeOption, JobArgument, open_client, say
from cerebras_cloud.client import Client
from cerebras_cloud.errors import BadInput

COMPILER = "cerebras_wafer"
FIRST_STEP = "1:1"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(profile)


def profile(
    job: JobArgument,
    steps: Annotated[str | None, typer.Option(metavar="FIRST:LAST", help="Steps, both included.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="By the plan, though the job has left one.")] = False,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("trace.json"),
    home: HomeOption = None,
) -> None:
    """Write a Chrome and Perfetto trace of a job's steps in simulated time: compute, weights, gradients, input.

    It is the newest profile that the job has left (`profile_steps` in run.yaml), or that of these steps; where there is
    none, it is what the plan says of the steps, the first one if none are named.
    """
    with open_client(home) as client:
        name = None if plan else _left(client, job, steps)
        if name is not None:
            client.files.download(job, name, output)
            say(f"{output}: {name}, the steps as they were")
            return
        status = _of_the_plan(client, job, steps or FIRST_STEP, output)
    raise typer.Exit(status)


def _left(client: Client, job: str, steps: str | None) -> str | None:
    """The name of the profile that the job has left of these steps; without any, of its newest."""
    names = [file.name for file in client.files.list(job)]
    wanted = [f"profile_{steps.replace(':', '_')}.json"] if steps else names[::-1]
    return next((name for name in wanted if name in names and name.startswith("profile_")), None)


def _of_the_plan(client: Client, job: str, steps: str, output: Path) -> int:
    if find_spec(COMPILER) is None:
        raise BadInput("a profile by the plan needs the package cerebras-emulator-wafer in this Python environment.")
    with tempfile.TemporaryDirectory(prefix="cerebras-profile-") as folder:
        artifact = client.artifacts.download(job, Path(folder) / "artifact")
        command = [sys.executable, "-m", COMPILER, "profile", str(artifact), "--steps", steps, "--output", str(output)]
        return subprocess.run(command, check=False).returncode
