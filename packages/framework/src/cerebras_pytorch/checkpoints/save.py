"""Writes a checkpoint: complete or absent, whatever happens to the process or the machine in between."""

import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue
from torch import Tensor

from cerebras_contract.checkpoints import (
    CHECKPOINT_MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    TRAINING_FILE,
    TRAINING_TENSORS_FILE,
    CheckpointManifest,
)
from cerebras_contract.digests import sha256_of_file
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.checkpoints.folder import PARTIAL, bring_back, bring_to_disk, hidden, put_in_place
from cerebras_pytorch.checkpoints.tensor_file import LetGo, keep, write_tensors
from cerebras_pytorch.failures import is_disk_full


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is to hold, copied: training may go on while it is written."""

    step: int
    artifact_key: str
    model: dict[str, Tensor]
    optimizer_name: str = ""
    hyperparameters: list[dict[str, JsonValue]] = field(default_factory=list)
    optimizer: dict[str, Tensor] | None = None
    training: JsonValue = None
    training_tensors: dict[str, Tensor] = field(default_factory=dict)
    extra: JsonValue = None
    created_at: float = field(default_factory=time.time)
    let_go: LetGo = keep
    """What to do with parts of the tensors that are written: those in a file need not stay in memory."""


def write_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Write everything under another name, bring it to disk, then rename.

    A checkpoint of this name is replaced; anything else there is kept, and a `ReportedError` names it, as it does
    what the disk refuses.
    """
    bring_back(folder)
    if folder.exists() and not (folder / CHECKPOINT_MANIFEST_FILE).is_file():
        raise not_saved(
            f"{folder} exists and is no checkpoint, so it is not replaced",
            "Move it away, or run the script in another folder.",
        )
    partial = hidden(folder, PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _fill(partial, snapshot)
        put_in_place(partial, folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise not_saved(
            f"the checkpoint of step {snapshot.step} was not saved to {folder}: {error.strerror}",
            "Checkpoints that were saved before it are as they were. Make room, then go on from the last one.",
            ErrorCode.RUN_DISK_FULL if is_disk_full(error) else ErrorCode.CHECKPOINT_NOT_SAVED,
        ) from error


def _fill(folder: Path, snapshot: Snapshot) -> None:
    files = {MODEL_FILE: snapshot.model}
    if snapshot.optimizer is not None:
        files |= {OPTIMIZER_FILE: snapshot.optimizer, TRAINING_TENSORS_FILE: snapshot.training_tensors}
    written = {name: write_tensors(folder / name, tensors, snapshot.let_go) for name, tensors in files.items()}
    digests = {name: one.sha256 for name, one in written.items()}
    if snapshot.optimizer is not None:
        _write_json(folder / TRAINING_FILE, snapshot.training)
        digests[TRAINING_FILE] = sha256_of_file(folder / TRAINING_FILE)
    manifest = CheckpointManifest(
        step=snapshot.step,
        artifact_key=snapshot.artifact_key,
        created_at=snapshot.created_at,
        optimizer=snapshot.optimizer_name,
        hyperparameters=snapshot.hyperparameters,
        digests=digests,
        checksums={name: one.checksums for name, one in written.items()},
        extra=snapshot.extra,
    )
    _write_json(folder / CHECKPOINT_MANIFEST_FILE, manifest.model_dump(mode="json"))
    bring_to_disk(folder)


def _write_json(path: Path, content: JsonValue) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
    bring_to_disk(path)


def not_saved(message: str, advice: str, code: ErrorCode = ErrorCode.CHECKPOINT_NOT_SAVED) -> ReportedError:
    """The error of a checkpoint that could not be written."""
    return ReportedError(ErrorReport(code=code, message=message, advice=advice))
