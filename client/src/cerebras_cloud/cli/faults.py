"""`fault`: let something go wrong on the simulated system of a job."""

from typing import Annotated

import typer
from pydantic import ValidationError

from cerebras_cloud.cli.output import HomeOption, JobArgument, open_client
from cerebras_cloud.errors import BadInput
from cerebras_contract.faults import FaultKind, SentFault


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(fault)


def fault(
    job: JobArgument,
    kind: Annotated[FaultKind, typer.Argument(help="What goes wrong.")],
    step: Annotated[int | None, typer.Option(help="In which step. [default: the next one]")] = None,
    factor: Annotated[float | None, typer.Option(help="slow_link: so many times slower.")] = None,
    steps: Annotated[int | None, typer.Option(help="slow_link: for so many steps. [default: to the end]")] = None,
    count: Annotated[int | None, typer.Option(help="defects: so many processing elements fail.")] = None,
    seconds: Annotated[float | None, typer.Option(help="stalled_input: of device time.")] = None,
    home: HomeOption = None,
) -> None:
    """Send a fault to a job that trains, or that will: it loses its system, or becomes slow."""
    try:
        sent = SentFault(kind=kind, step=step, factor=factor, steps=steps, count=count, seconds=seconds)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"--{first['loc'][0]}: " if first["loc"] else ""
        raise BadInput(f"{where}{first['msg'].removeprefix('Value error, ')}.") from None
    with open_client(home) as client:
        print(f"{job} is {client.jobs.send_fault(job, sent).status}")
