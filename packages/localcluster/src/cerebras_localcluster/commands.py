"""`cerebras-cloud up`, `down`, `status`."""

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cerebras_contract.cluster import ClusterStatus
from cerebras_contract.run_directory import SandboxKind
from cerebras_localcluster import launch
from cerebras_localcluster.errors import ClusterError
from cerebras_localcluster.home import local_home, prepare
from cerebras_localcluster.services import ClusterOptions
from cerebras_localcluster.shutdown import end_cluster
from cerebras_localcluster.status import cluster_status, is_healthy, is_starting

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="The cluster's home. [default: CEREBRAS_CLOUD_HOME, else ~/.cerebras-cloud]"),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command()(down)
    app.command()(status)


def up(
    detach: Annotated[bool, typer.Option("--detach", help="Return when the cluster is up.")] = False,
    home: HomeOption = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the API. [default: 8790]")] = None,
    user_python: Annotated[
        Path | None, typer.Option(help="Python that runs the users' scripts. [default: the cluster's own]")
    ] = None,
    sandbox: Annotated[
        SandboxKind, typer.Option(help="How scripts are kept from the rest of this machine.")
    ] = SandboxKind.BUBBLEWRAP,
) -> None:
    """Start a cluster on this machine: Valkey, the API, a compile worker and a run worker."""
    place = local_home(home)
    try:
        prepare(place)
        url = launch.running_url(place)
        if url is not None:
            typer.echo(f"The cluster at {place.root} is up already: {url}")
            return
        if launch.is_abandoned(place):
            typer.echo(f"Cleaning up what is left of a cluster at {place.root} whose supervisor was killed.")
        options = ClusterOptions(port, _executable(user_python), sandbox)
        (launch.run_detached if detach else launch.run_here)(place, options)
    except ClusterError as error:
        _fail(error)


def down(home: HomeOption = None) -> None:
    """Stop the cluster and whatever is left of it."""
    place = local_home(home)
    try:
        ended = end_cluster(place)
    except ClusterError as error:
        _fail(error)
    if ended:
        typer.echo(f"Stopped {', '.join(known.name for known in reversed(ended))}.")
    else:
        typer.echo(f"No cluster was running at {place.root}.")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Show each process of the cluster. Exit status 0 only if all are healthy."""
    place = local_home(home)
    try:
        found = cluster_status(place)
    except ClusterError as error:
        _fail(error)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    elif found.running or is_starting(found):
        typer.echo(_text(found))
    else:
        option = launch.home_option(place)
        typer.echo(f"No cluster is running at {place.root}. Start one: cerebras-cloud up --detach{option}")
    raise typer.Exit(0 if is_healthy(found) else 1)


def _text(found: ClusterStatus) -> str:
    lines = [f"{found.url or 'starting'} (home: {found.home})"]
    for process in found.processes:
        detail = "" if process.detail is None else f"  {process.detail}"
        lines.append(f"  {process.name:<16}{process.pid:>8}  {process.health}{detail}")
    return "\n".join(lines)


def _executable(python: Path | None) -> Path | None:
    if python is not None and not (python.is_file() and os.access(python, os.X_OK)):
        raise ClusterError(f"{python} is not a program: --user-python expects a Python interpreter.")
    return python


def _fail(error: ClusterError) -> NoReturn:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(1)
