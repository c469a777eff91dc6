"""`jobs list`, `show`, `cancel`; `events`."""

import time
from typing import Annotated

import typer

from cerebras_cloud.cli.output import (
    Format,
    HomeOption,
    JobArgument,
    open_client,
    print_json_array,
    print_table,
    readable_duration,
    readable_time,
)
from cerebras_contract.jobs import JobView, StageView
from cerebras_contract.states import StageStatus

PASSED = (StageStatus.SUCCEEDED, StageStatus.SKIPPED)
HEADER = ("ID", "NAME", "STATUS", "STAGE", "PRIORITY", "AGE", "DURATION", "LABELS")
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="How to print.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True)
    group.command("list")(list_jobs)
    group.command("show")(show)
    group.command("cancel")(cancel)
    app.add_typer(group, name="jobs", help="List, show and cancel jobs.")
    app.command()(events)


def list_jobs(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 50,
    output: FormatOption = Format.TABLE,
    home: HomeOption = None,
) -> None:
    """List jobs, newest first."""
    with open_client(home) as client:
        jobs = list(client.jobs.list(limit))
    if output is Format.JSON:
        print_json_array(jobs)
    else:
        print_table(HEADER, [_row(job) for job in jobs])


def show(job: JobArgument, home: HomeOption = None) -> None:
    """Print everything about a job, as JSON."""
    with open_client(home) as client:
        print(client.jobs.get(job).model_dump_json(indent=2))


def cancel(job: JobArgument, home: HomeOption = None) -> None:
    """Cancel a job: it saves a checkpoint and ends."""
    with open_client(home) as client:
        print(f"{job} is {client.jobs.cancel(job).status}")


def events(job: JobArgument, output: FormatOption = Format.TABLE, home: HomeOption = None) -> None:
    """Print what happened to a job, in order."""
    with open_client(home) as client:
        happened = client.jobs.events(job)
    if output is Format.JSON:
        print_json_array(happened)
    else:
        rows = [(readable_time(event.time), event.kind, event.message) for event in happened]
        print_table(("TIME", "EVENT", "MESSAGE"), rows)


def current_stage(job: JobView) -> StageView:
    """The stage a job is in, or ended in: the first that is not done well, else the last."""
    return next((stage for stage in job.stages if stage.status not in PASSED), job.stages[-1])


def _row(job: JobView) -> tuple[str, ...]:
    now = time.time()
    started = min((stage.started_at for stage in job.stages if stage.started_at is not None), default=None)
    duration = "" if started is None else readable_duration((job.finished_at or now) - started)
    age = readable_duration(now - job.created_at)
    stage = current_stage(job).kind
    return (job.id, job.name, job.status, stage, job.priority, age, duration, ",".join(job.labels))
