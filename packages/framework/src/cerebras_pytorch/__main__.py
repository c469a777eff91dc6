"""Commands that need torch, for a person or for `cerebras-cloud`.

plan SCRIPT                         compare systems and batches for a script, without a job
checkpoint convert FOLDER OUTPUT    a checkpoint to a plain PyTorch state dict
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from cerebras_contract.errors import ReportedError
from cerebras_pytorch import planning
from cerebras_pytorch.checkpoints import state_dict


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
    checkpoint = commands.add_parser("checkpoint", help="work on a checkpoint")
    convert = checkpoint.add_subparsers(required=True).add_parser("convert", help="to a plain PyTorch state dict")
    convert.add_argument("folder", type=Path, help="such as checkpoints/step_100")
    convert.add_argument("output", type=Path, help="the .pt file to write")
    convert.set_defaults(command=_convert)
    return parser


def _convert(arguments: argparse.Namespace) -> int:
    tensors = state_dict(arguments.folder)
    try:
        torch.save(tensors, arguments.output)
    except OSError as error:
        print(f"cannot write {arguments.output}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"Wrote {len(tensors)} tensors to {arguments.output}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
