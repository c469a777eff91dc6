"""Builds the command line and turns every error into one readable message and an exit status."""

import os
import sys
import traceback
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from cerebras_cloud.cli import artifacts, checkpoints, faults, files, jobs, plan, profile, submit, systems, telemetry
from cerebras_cloud.cli.output import say
from cerebras_cloud.errors import CloudError, ExitCode, exit_code_of
from cerebras_contract.errors import ReportedError

PLUGIN_GROUP = "cerebras_cloud.commands"
DEBUG_VARIABLE = "CEREBRAS_CLOUD_DEBUG"


def main() -> None:
    """The console script. No error leaves it as a traceback, unless `--debug` asks for one."""
    try:
        build_app()()
    except CloudError as error:
        _end(f"error: {error}", error.exit_code)
    except ReportedError as error:
        _end(f"error: {error.report}", exit_code_of(error.report))
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        _end(
            f"unexpected {type(error).__name__}: {error}. `cerebras-cloud --debug ...` shows where.",
            ExitCode.FAILED,
        )


def _end(message: str, code: ExitCode) -> None:
    say(message)
    sys.exit(code)


def build_app() -> typer.Typer:
    """The whole command line: our commands, then those of installed plug-ins."""
    app = typer.Typer(
        help="Train PyTorch models on an emulated Cerebras Cloud.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for module in (submit, plan, jobs, telemetry, checkpoints, artifacts, files, profile, faults, systems):
        module.register(app)
    for plugin in entry_points(group=PLUGIN_GROUP):
        try:
            plugin.load()(app)
        except Exception as error:  # one broken plug-in must not take the other commands along
            say(f"warning: the commands of {plugin.value} are missing: {error}")
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"cerebras-cloud {version('cerebras-emulator-client')}")
        raise typer.Exit


def _options(
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar=DEBUG_VARIABLE, help="Show tracebacks of unexpected errors."),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
