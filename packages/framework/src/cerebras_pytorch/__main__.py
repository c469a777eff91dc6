"""`python -m cerebras_pytorch checkpoint convert FOLDER OUTPUT`: a checkpoint to a plain PyTorch state dict."""

import argparse
import sys
from pathlib import Path

import torch

from cerebras_contract.errors import ReportedError
from cerebras_pytorch.checkpoints import state_dict


def main() -> int:
    """Convert, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cerebras_pytorch")
    checkpoint = parser.add_subparsers(required=True).add_parser("checkpoint", help="work on a checkpoint")
    convert = checkpoint.add_subparsers(required=True).add_parser("convert", help="to a plain PyTorch state dict")
    convert.add_argument("folder", type=Path, help="such as checkpoints/step_100")
    convert.add_argument("output", type=Path, help="the .pt file to write")
    arguments = parser.parse_args()
    try:
        tensors = state_dict(arguments.folder)
        torch.save(tensors, arguments.output)
    except ReportedError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except OSError as error:
        print(f"cannot write {arguments.output}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"Wrote {len(tensors)} tensors to {arguments.output}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
