"""Commands that need torch, for a person or for `cerebras-cloud`.

plan SCRIPT                         compare systems and batches for a script, without a job
checkpoint inspect FOLDER           what is in a checkpoint
checkpoint convert SOURCE OUTPUT    a checkpoint to or from a plain PyTorch state dict
"""

import argparse
import sys
from collections.abc import Callable

from cerebras_contract.errors import ReportedError
from cerebras_pytorch import planning
from cerebras_pytorch.checkpoints import commands as checkpoint_commands


def main() -> int:
    """Run a command and return the exit status."""
    arguments = _parser().parse_args()
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except ReportedError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cerebras_pytorch", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="compare systems and batches for a script", allow_abbrev=False)
    planning.add_arguments(plan)
    plan.set_defaults(command=planning.plan)
    checkpoint = commands.add_parser("checkpoint", help="work on a checkpoint", allow_abbrev=False)
    checkpoint_commands.add_arguments(checkpoint)
    return parser


if __name__ == "__main__":
    sys.exit(main())
