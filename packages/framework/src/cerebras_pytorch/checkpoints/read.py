"""Reads a checkpoint, and converts it to a plain PyTorch state dict."""

from pathlib import Path

from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from cerebras_contract.checkpoints import CHECKPOINT_MANIFEST_FILE, MODEL_FILE, SCHEMA_VERSION, CheckpointManifest
from cerebras_contract.digests import sha256_of_file
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError


def read_checkpoint(folder: Path | str) -> CheckpointManifest:
    """The manifest of a checkpoint whose files are all there and undamaged, else a `ReportedError` naming the file."""
    folder = Path(folder)
    path = folder / CHECKPOINT_MANIFEST_FILE
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _invalid(path, f"no checkpoint here: {error.strerror}") from None
    except ValidationError:
        raise _invalid(path, "not the manifest of a checkpoint") from None
    if manifest.schema_version != SCHEMA_VERSION:
        raise _invalid(path, f"written in format {manifest.schema_version}; this version reads {SCHEMA_VERSION}")
    for name, digest in manifest.digests.items():
        file = folder / name
        if not file.is_file():
            raise _invalid(file, "missing from the checkpoint")
        if sha256_of_file(file) != digest:
            raise _invalid(file, "differs from what was saved (its sha256 is not the manifest's)")
    return manifest


def state_dict(folder: Path | str) -> dict[str, Tensor]:
    """A plain state dict for the bare module: its own names, with no `module.` before them."""
    read_checkpoint(folder)
    return load_file(Path(folder) / MODEL_FILE)


def _invalid(path: Path, message: str) -> ReportedError:
    return ReportedError(
        ErrorReport(
            code=ErrorCode.CHECKPOINT_INVALID,
            message=message,
            file=str(path),
            advice="Name the folder of one checkpoint, such as checkpoints/step_100.",
        )
    )
