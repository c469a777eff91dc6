"""Reads a checkpoint: whole, undamaged and of this format, or a `ReportedError` that names the file and the tensor."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError
from torch import Tensor

from cerebras_contract.checkpoints import (
    CHECKPOINT_MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    SCHEMA_VERSION,
    TRAINING_FILE,
    TRAINING_TENSORS_FILE,
    CheckpointManifest,
)
from cerebras_contract.digests import sha256_of_file
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.checkpoints.tensor_file import TensorFileError, check_tensors, read_tensors
from cerebras_pytorch.checkpoints.values import from_json

NAME_A_FOLDER = "Name the folder of one checkpoint, such as checkpoints/step_100."
DAMAGED = "Take an older checkpoint, or fetch this one again: `cerebras-cloud checkpoint download JOB`."
_TENSOR_FILES = (MODEL_FILE, OPTIMIZER_FILE, TRAINING_TENSORS_FILE)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's content. Tensors are mapped from its files: copy from them, do not write to them."""

    folder: Path
    manifest: CheckpointManifest
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor] | None
    """None where it has weights and no more."""
    training: JsonValue
    training_tensors: dict[str, Tensor]

    @property
    def has_weights_only(self) -> bool:
        """Whether it says nothing of how training went, as one that was converted from a state dict."""
        return self.optimizer is None or self.training is None

    @property
    def step(self) -> int:
        """The last step before it was saved."""
        return self.manifest.step

    @property
    def extra(self) -> Any:
        """What the user let ride along."""
        return from_json(self.manifest.extra, {})


def read_checkpoint(folder: Path | str) -> Checkpoint:
    """Read a checkpoint and check every tensor by its checksum."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    tensors = {name: _read(folder / name, manifest.checksums.get(name, {})) for name in _tensor_files(manifest)}
    return Checkpoint(
        folder=folder,
        manifest=manifest,
        model=tensors[MODEL_FILE],
        optimizer=tensors.get(OPTIMIZER_FILE),
        training=_read_json(folder / TRAINING_FILE, manifest) if TRAINING_FILE in manifest.digests else None,
        training_tensors=tensors.get(TRAINING_TENSORS_FILE, {}),
    )


def state_dict(folder: Path | str) -> dict[str, Tensor]:
    """A plain state dict for the bare module: its own names, with no `module.` before them."""
    return {name: tensor.clone() for name, tensor in read_checkpoint(folder).model.items()}


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint whose files are all there; their content is not looked at."""
    path = folder / CHECKPOINT_MANIFEST_FILE
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise invalid(path, f"no checkpoint here: {error.strerror}") from None
    except ValueError:
        raise invalid(path, "not the manifest of a checkpoint: it is no JSON", DAMAGED) from None
    _refuse_other_version(path, content)
    try:
        manifest = CheckpointManifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise invalid(path, f"not the manifest of a checkpoint: {place}: {first['msg']}", DAMAGED) from None
    for name in (MODEL_FILE, *manifest.digests):
        if not (folder / name).is_file():
            raise invalid(folder / name, "missing from the checkpoint", DAMAGED)
    return manifest


def check_digests(folder: Path, manifest: CheckpointManifest) -> dict[str, bool]:
    """Whether each file has the sha256 that the manifest names."""
    return {name: sha256_of_file(folder / name) == digest for name, digest in manifest.digests.items()}


def _refuse_other_version(path: Path, content: object) -> None:
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise invalid(path, "not the manifest of a checkpoint: it names no schema_version")
    if version < SCHEMA_VERSION:
        advice = f"Its weights can still be read: `safetensors.torch.load_file` of its {MODEL_FILE}."
        raise invalid(path, f"written in format {version}; this version reads {SCHEMA_VERSION}", advice)
    if version > SCHEMA_VERSION:
        advice = "Install the version of cerebras-emulator-pytorch that wrote it, or a later one."
        raise invalid(path, f"written in format {version}; this version reads {SCHEMA_VERSION}", advice)


def _tensor_files(manifest: CheckpointManifest) -> list[str]:
    return [name for name in _TENSOR_FILES if name in manifest.digests]


def _read(path: Path, checksums: dict[str, int]) -> dict[str, Tensor]:
    try:
        tensors = read_tensors(path)
        check_tensors(path, checksums)
    except TensorFileError as error:
        raise invalid(path, str(error), DAMAGED) from None
    return tensors


def _read_json(path: Path, manifest: CheckpointManifest) -> JsonValue:
    if sha256_of_file(path) != manifest.digests[path.name]:
        raise invalid(path, "differs from what was saved (its sha256 is not the manifest's)", DAMAGED)
    content: JsonValue = json.loads(path.read_bytes())
    return content


def invalid(path: Path, message: str, advice: str = NAME_A_FOLDER) -> ReportedError:
    """The error of a checkpoint that cannot be used."""
    return ReportedError(ErrorReport(code=ErrorCode.CHECKPOINT_INVALID, message=message, file=str(path), advice=advice))
