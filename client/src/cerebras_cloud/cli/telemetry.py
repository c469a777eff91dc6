"""`logs`, `follow`, `metrics`: what a job says while it runs and after."""

import csv
import sys
from enum import StrEnum
from typing import Annotated

import typer

from cerebras_cloud.cli.follow import follow_job, follow_log
from cerebras_cloud.cli.output import (
    HomeOption,
    JobArgument,
    open_client,
    print_json_array,
    print_table,
)
from cerebras_contract.jobs import MetricPoint


class MetricsFormat(StrEnum):
    """How metrics are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


COLUMNS = ("name", "step", "value", "time", "device_seconds")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(logs)
    app.command()(follow)
    app.command()(metrics)


def logs(
    job: JobArgument,
    follow_on: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
    home: HomeOption = None,
) -> None:
    """Print a job's output, byte for byte. With -f, exit as the job does."""
    with open_client(home) as client:
        if follow_on:
            raise typer.Exit(follow_log(client, job, home))
        for data in client.jobs.logs(job):
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def follow(job: JobArgument, home: HomeOption = None) -> None:
    """Follow a job from its first line to its end, and exit as it does. Ctrl-C leaves the job running."""
    with open_client(home) as client:
        raise typer.Exit(follow_job(client, job, home))


def metrics(
    job: JobArgument,
    name: Annotated[str | None, typer.Option(help="Only this metric.")] = None,
    output: Annotated[MetricsFormat, typer.Option("-o", "--output", help="How to print.")] = MetricsFormat.TABLE,
    home: HomeOption = None,
) -> None:
    """Print a job's metrics. Times are seconds since 1970; device seconds are simulated time."""
    with open_client(home) as client:
        points = list(client.jobs.metrics(job, name))
    if output is MetricsFormat.JSON:
        print_json_array(points)
    elif output is MetricsFormat.CSV:
        csv.writer(sys.stdout).writerows([COLUMNS, *map(_cells, points)])
    else:
        print_table(tuple(map(str.upper, COLUMNS)), map(_cells, points))


def _cells(point: MetricPoint) -> tuple[str, ...]:
    """A point as text that reads back as exactly the same numbers; `nan` and `inf` included."""
    device = "" if point.device_seconds is None else repr(point.device_seconds)
    return (point.name, str(point.step), repr(point.value), repr(point.time), device)
