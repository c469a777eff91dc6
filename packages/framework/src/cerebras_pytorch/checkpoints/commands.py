"""`checkpoint inspect` and `checkpoint convert`: what a person asks of a checkpoint on disk."""

import argparse
import json
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from cerebras_contract.checkpoints import TRAINING_FILE, CheckpointManifest
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.stacks import first_line
from cerebras_pytorch.checkpoints.read import check_digests, read_manifest, state_dict
from cerebras_pytorch.checkpoints.save import Snapshot, write_checkpoint
from cerebras_pytorch.checkpoints.tensor_file import TensorFileError, read_tensors, tensor_checksum
from cerebras_pytorch.data.position import Position


@dataclass(frozen=True)
class TensorRow:
    """A tensor as `inspect` shows it."""

    file: str
    name: str
    dtype: str
    shape: list[int]
    size_bytes: int
    intact: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands below `checkpoint`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    inspecting = commands.add_parser("inspect", help="what is in a checkpoint, and whether it is undamaged")
    inspecting.add_argument("folder", type=Path, help="such as checkpoints/step_100")
    inspecting.add_argument("--json", action="store_true", dest="as_json")
    inspecting.set_defaults(command=inspect)
    converting = commands.add_parser("convert", help="to or from a plain PyTorch state dict")
    converting.add_argument("source", type=Path, help="a checkpoint's folder, or a .pt file with a state dict")
    converting.add_argument("output", type=Path, help="the .pt file, or the folder, to write")
    converting.set_defaults(command=convert)


def inspect(arguments: argparse.Namespace) -> int:
    """Print a checkpoint's content; status 1 where something in it is damaged."""
    folder: Path = arguments.folder
    manifest = read_manifest(folder)
    digests = check_digests(folder, manifest)
    errors: list[str] = []
    rows = list(_rows(folder, manifest, errors))
    damaged = [f"{folder / name}: differs from what was saved" for name, intact in digests.items() if not intact]
    errors = [*damaged, *errors, *(f"{folder / row.file}: {row.name} is damaged" for row in rows if not row.intact)]
    if arguments.as_json:
        _print_json(manifest, digests, rows)
    else:
        _print_tables(folder, manifest, digests, rows)
    for line in errors:
        print(f"error: {line}", file=sys.stderr)  # noqa: T201
    return 1 if errors else 0


def convert(arguments: argparse.Namespace) -> int:
    """A checkpoint to a state dict, or a state dict to a checkpoint that has weights and no more."""
    source: Path = arguments.source
    output: Path = arguments.output
    if source.is_file():
        tensors = _plain_state_dict(source)
        write_checkpoint(output, Snapshot(step=0, artifact_key="", model=tensors))
    else:
        tensors = state_dict(source)
        try:
            torch.save(tensors, output)
        except (OSError, RuntimeError) as error:  # torch's own words, where there is no such folder
            print(f"error: cannot write {output}: {error}", file=sys.stderr)  # noqa: T201
            return 1
    print(f"Wrote {len(tensors)} tensors to {output}")  # noqa: T201
    return 0


def _plain_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name, read without running any code that the file may hold."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise _no_state_dict(path, f"cannot be read as a state dict: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise _no_state_dict(path, f"holds a {type(content).__name__}, not a state dict")
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise _no_state_dict(path, f"its entry {name!r} is a {type(value).__name__}, not a tensor")
    return {str(name): value.detach().contiguous() for name, value in content.items()}


def _no_state_dict(path: Path, message: str) -> ReportedError:
    advice = "Save the model's own: torch.save(model.state_dict(), path)."
    return ReportedError(ErrorReport(code=ErrorCode.CHECKPOINT_INVALID, message=message, file=str(path), advice=advice))


def _rows(folder: Path, manifest: CheckpointManifest, errors: list[str]) -> Iterator[TensorRow]:
    for file, checksums in manifest.checksums.items():
        try:
            tensors = read_tensors(folder / file)
        except TensorFileError as error:
            errors.append(f"{folder / file}: {error}")
            continue
        for name in sorted(tensors):
            tensor = tensors[name]
            intact = tensor_checksum(tensor) == checksums.get(name)
            dtype, size_bytes = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
            yield TensorRow(file, name, dtype, list(tensor.shape), size_bytes, intact)


def _print_json(manifest: CheckpointManifest, digests: dict[str, bool], rows: list[TensorRow]) -> None:
    content = manifest.model_dump(mode="json", exclude={"checksums"})
    content |= {"intact": digests, "tensors": [asdict(row) for row in rows]}
    print(json.dumps(content, indent=1))  # noqa: T201


def _print_tables(folder: Path, manifest: CheckpointManifest, digests: dict[str, bool], rows: list[TensorRow]) -> None:
    facts = [("Checkpoint", str(folder)), ("Step", str(manifest.step)), ("Saved", _time(manifest.created_at))]
    if TRAINING_FILE in digests:
        facts.append(("Place", _position(folder)))
    if manifest.optimizer:
        rates = ", ".join(f"{group['lr']:g}" for group in manifest.hyperparameters)
        facts.append(("Optimizer", f"{manifest.optimizer}, learning rate {rates}"))
    if manifest.artifact_key:
        facts.append(("Artifact", manifest.artifact_key))
    if manifest.extra is not None:
        facts.append(("Rides along", json.dumps(manifest.extra)))
    _print_rows(facts)
    print()  # noqa: T201
    sizes = {name: f"{(folder / name).stat().st_size:,}" for name in digests}
    files = [(name, sizes[name], "ok" if intact else "DAMAGED") for name, intact in digests.items()]
    _print_rows([("FILE", "BYTES", "SHA256"), *files])
    print()  # noqa: T201
    tensors = [
        (row.name, row.dtype, str(row.shape), f"{row.size_bytes:,}", "ok" if row.intact else "DAMAGED") for row in rows
    ]
    _print_rows([("TENSOR", "DTYPE", "SHAPE", "BYTES", "CHECKSUM"), *tensors])


def _print_rows(lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())  # noqa: T201


def _position(folder: Path) -> str:
    try:
        return str(Position.from_plain(json.loads((folder / TRAINING_FILE).read_bytes())["epochs"]))
    except (ValueError, KeyError, TypeError):
        return "unreadable"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
