"""Starting a cluster: in this process, or in one that outlives it."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import typer

from cerebras_localcluster.home import (
    LocalHome,
    local_home,
    locked,
    make_api_key,
    read_connection,
    read_processes,
)
from cerebras_localcluster.services import ClusterOptions, plan_cluster
from cerebras_localcluster.shutdown import end_cluster, living
from cerebras_localcluster.supervisor import SUPERVISOR, Pace, Supervisor

LOOK_SECONDS = 0.1


def run_here(home: LocalHome, options: ClusterOptions) -> None:
    """Be the cluster's supervisor until a signal asks to stop."""
    with locked(home):
        end_cluster(home)
        make_api_key(home)
        plan = plan_cluster(home, options)
        Supervisor(home, plan, Pace()).run(lambda: typer.echo(description(home, plan.url)))
    typer.echo("The cluster is stopped.")


def run_detached(home: LocalHome, options: ClusterOptions) -> None:
    """Start a supervisor in a session of its own and wait until the cluster is up, or say why it is not."""
    log = home.log_of(SUPERVISOR)
    with log.open("ab") as output:
        begin_bytes = output.tell()
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "cerebras_localcluster", "up", *_options(home, options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while (url := _url_by(home, supervisor.pid)) is None:
            if supervisor.poll() is not None:
                ending = _text_from(log, begin_bytes) or f"the supervisor ended with {supervisor.returncode}"
                typer.echo(ending, err=True)
                raise typer.Exit(min(abs(supervisor.returncode), 1))
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    typer.echo(description(home, url))


def running_url(home: LocalHome) -> str | None:
    """The URL of the cluster that is up at this home, None where there is none with a living supervisor."""
    connection = read_connection(home)
    return connection.url if connection is not None and _is_supervised(home) else None


def is_abandoned(home: LocalHome) -> bool:
    """Whether processes of a cluster are left at this home whose supervisor was killed."""
    return bool(living(home)) and not _is_supervised(home)


def _is_supervised(home: LocalHome) -> bool:
    return any(known.name == SUPERVISOR for known in living(home))


def _url_by(home: LocalHome, supervisor_pid: int) -> str | None:
    """The cluster's URL once it is up, if it is this supervisor's."""
    connection = read_connection(home)
    pids = [known.pid for known in read_processes(home).processes if known.name == SUPERVISOR]
    return connection.url if connection is not None and pids == [supervisor_pid] else None


def _options(home: LocalHome, options: ClusterOptions) -> list[str]:
    words = ["--home", str(home.root), "--sandbox", str(options.sandbox)]
    if options.port is not None:
        words += ["--port", str(options.port)]
    if options.user_python is not None:
        words += ["--user-python", str(options.user_python)]
    return words


def _text_from(log: Path, begin_bytes: int) -> str:
    with log.open("rb") as file:
        file.seek(begin_bytes)
        return file.read().decode(errors="replace").strip()


def description(home: LocalHome, url: str) -> str:
    """What a user wants to know of a cluster that is up."""
    return (
        f"The cluster is up at {url}\n"
        f"  home        {home.root}\n"
        f"  submit      cerebras-cloud submit train.py{home_option(home)}\n"
        f"  API docs    {url}/docs\n"
        f"  stop        cerebras-cloud down{home_option(home)}"
    )


def home_option(home: LocalHome) -> str:
    """What to add to a command so that it means this home; nothing where it is the default."""
    return "" if home == local_home(None) else f" --home {shlex.quote(str(home.root))}"
