"""What the commands share: options, the connection, and how things are shown."""

import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from cerebras_cloud.client import Client
from cerebras_cloud.connection import find_endpoint

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="Home of an embedded cluster. [default: CEREBRAS_CLOUD_HOME, else ~/.cerebras-cloud]",
        show_default=False,
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `submit` prints it.")]


class Format(StrEnum):
    """How a list is printed."""

    TABLE = "table"
    JSON = "json"


def open_client(home: Path | None) -> Client:
    """A client of the cluster that the command means."""
    return Client(find_endpoint(home))


def command_line(home: Path | None, *words: str) -> str:
    """A command to paste into a shell, for the same cluster as this one."""
    return shlex.join(["cerebras-cloud", *words, *(["--home", str(home)] if home else [])])


def say(line: str) -> None:
    """A line for people, on stderr: stdout is for what a program may read."""
    print(line, file=sys.stderr, flush=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as csctl and kubectl print them: never cut, easy to `grep`."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_json_array(models: Iterable[BaseModel]) -> None:
    """A JSON array of contract models; NaN and infinities as the strings of the contract."""
    print("[" + ",\n ".join(model.model_dump_json() for model in models) + "]")


def readable_duration(seconds: float) -> str:
    """A duration for people: 5s, 3m10s, 2h05m, 4d3h."""
    minutes, whole_seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole_seconds:02}s" if minutes else f"{whole_seconds}s"


def readable_time(seconds_since_epoch: float) -> str:
    """Local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds_since_epoch))
