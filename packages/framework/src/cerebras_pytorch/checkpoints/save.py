"""Writes a checkpoint."""

import os
import shutil
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_contract.checkpoints import CHECKPOINT_MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE, CheckpointManifest
from cerebras_contract.digests import sha256_of_file
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.optimizer import constants_of
from cerebras_pytorch.nn import bare_module


def save_checkpoint(
    folder: Path,
    step: int,
    manifest: Manifest,
    model: nn.Module,
    optimizer: Optimizer,
    tensors: dict[str, Tensor],
) -> None:
    """Write everything under another name, bring it to disk, then rename: `folder` is complete or absent.

    An older checkpoint of this name is replaced; anything else there is kept, and a `ReportedError` names it.
    """
    if folder.exists() and not (folder / CHECKPOINT_MANIFEST_FILE).is_file():
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CHECKPOINT_INVALID,
                message=f"{folder} exists and is no checkpoint, so it is not replaced",
                advice="Move it away, or run the script in another folder.",
            )
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".cerebrasignore").write_text("*\n", encoding="utf-8")  # a bundle carries none of them
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(_separate(bare_module(model).state_dict()), partial / MODEL_FILE)
    state = {role.removeprefix("state:"): value for role, value in tensors.items() if role.startswith("state:")}
    save_file(_separate(state), partial / OPTIMIZER_FILE)
    content = CheckpointManifest(
        step=step,
        artifact_key=manifest.artifact_key,
        created_at=time.time(),
        optimizer=manifest.optimizer.name,
        hyperparameters=[
            {**constants, "lr": float(group["lr"])}
            for constants, group in zip(constants_of(optimizer), optimizer.param_groups, strict=True)
        ],
        digests={name: sha256_of_file(partial / name) for name in (MODEL_FILE, OPTIMIZER_FILE)},
    )
    (partial / CHECKPOINT_MANIFEST_FILE).write_text(content.model_dump_json(indent=2), encoding="utf-8")
    for path in [*partial.iterdir(), partial]:
        _bring_to_disk(path)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    _bring_to_disk(folder.parent)


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no storage, as the file format wants them (tied weights are written under each name)."""
    return {
        name: torch.clone(tensor.detach(), memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }


def _bring_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
