"""`files list`, `download`."""

from pathlib import Path
from typing import Annotated

import typer

from cerebras_cloud.bundle import readable_size
from cerebras_cloud.cli.output import HomeOption, JobArgument, open_client, print_table, readable_time


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True)
    group.command("list")(list_files)
    group.command()(download)
    app.add_typer(group, name="files", help="List and download what a job left beside its checkpoints.")


def list_files(job: JobArgument, home: HomeOption = None) -> None:
    """List the profiles of a job, and the summary of its attempts."""
    with open_client(home) as client:
        files = client.files.list(job)
    rows = [(file.name, readable_size(file.size_bytes), readable_time(file.created_at)) for file in files]
    print_table(("NAME", "SIZE", "LEFT"), rows)


def download(
    job: JobArgument,
    to: Annotated[Path | None, typer.Option(help="The folder to make. [default: files-JOB]")] = None,
    home: HomeOption = None,
) -> None:
    """Download all of them to a new folder, and print its path."""
    with open_client(home) as client:
        print(client.files.download_all(job, to or Path(f"files-{job}")))
