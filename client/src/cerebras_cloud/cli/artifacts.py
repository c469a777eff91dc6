"""`artifact show`, `download`."""

from pathlib import Path
from typing import Annotated

import typer

from cerebras_cloud.cli.output import HomeOption, JobArgument, open_client


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True)
    group.command()(show)
    group.command()(download)
    app.add_typer(group, name="artifact", help="Show and download what compile left.")


def show(job: JobArgument, home: HomeOption = None) -> None:
    """Print the artifact of a job, as JSON."""
    with open_client(home) as client:
        print(client.artifacts.get(job).model_dump_json(indent=2))


def download(
    job: JobArgument,
    to: Annotated[Path | None, typer.Option(help="The folder to make. [default: artifact-JOB]")] = None,
    home: HomeOption = None,
) -> None:
    """Download the artifact of a job to a new folder, and print its path."""
    with open_client(home) as client:
        print(client.artifacts.download(job, to or Path(f"artifact-{job}")))
