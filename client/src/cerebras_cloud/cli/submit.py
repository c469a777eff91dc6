"""`submit`: pack, upload, create the job, follow it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cerebras_cloud.cli.follow import follow_job
from cerebras_cloud.cli.output import HomeOption, command_line, open_client, say
from cerebras_cloud.cli.overrides import effective_configuration
from cerebras_cloud.client import Client
from cerebras_cloud.errors import BadInput
from cerebras_cloud.submission import Submission, path_in
from cerebras_contract.jobs import CheckpointReference
from cerebras_contract.systems import is_system_file


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(submit)


def submit(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python script to run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the script.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The run configuration, a run.yaml.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder to send, and the working directory. [default: the script's]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    system: Annotated[str | None, typer.Option(help="The system to run on, as cs-2, or a YAML file of yours.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Train this many steps.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set a value of run.yaml.")
    ] = None,
    from_checkpoint: Annotated[
        str | None, typer.Option(metavar="JOB[:STEP]", help="Go on from a checkpoint of another job, as its latest.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's id and return at once.")] = False,
    home: HomeOption = None,
) -> None:
    """Run a script on the cluster: send its folder, create a job, and follow it to the end."""
    folder = script.parent if root is None else root
    shortcuts = [("runconfig.system", system and _in_bundle(system, folder)), ("runconfig.max_steps", max_steps)]
    given = [f"{key}={json.dumps(value)}" for key, value in shortcuts if value is not None]
    submission = Submission(
        script=script,
        root=root,
        arguments=tuple(arguments or ()),
        name=name,
        configuration=effective_configuration(config, [*(assignments or ()), *given]),
        configuration_file=config,
    )
    with open_client(home) as client:
        if from_checkpoint is not None:
            submission = replace(submission, from_checkpoint=_checkpoint(client, from_checkpoint))
        job = client.jobs.submit(submission, say)
        if detach:
            say(f"follow it with: {command_line(home, 'follow', job.id)}")
            print(job.id)
            return
        say(f"submitted {job.id}")
        raise typer.Exit(follow_job(client, job.id, home))


def _checkpoint(client: Client, text: str) -> CheckpointReference:
    job, _, step = text.partition(":")
    if step and not step.isdecimal():
        raise BadInput(f"--from-checkpoint {text}: expected JOB or JOB:STEP, as in job-1a2b3c:100.")
    return CheckpointReference(job=job, step=client.checkpoints.find(job, int(step) if step else None).step)


def _in_bundle(system: str, folder: Path) -> str:
    """A system as the job will name it: a file by its path in the folder that is sent."""
    if not is_system_file(system):
        return system
    inside = path_in(folder, Path(system))
    if inside is None:
        raise BadInput(f"--system {system} is not in {folder}: choose a --root that holds it.")
    return inside
