"""A checkpoint: `checkpoints/step_N/`, complete or absent. safetensors and JSON, so that reading one runs no code.

checkpoint.json          `CheckpointManifest`, written last
model.safetensors        parameters and buffers, by the bare module's names (no `module.` before them)
optimizer.safetensors    state tensors, named `parameter/state`
training.json            everything else that training goes on from: `training.safetensors` holds its tensors
"""

from pydantic import Field, JsonValue

from cerebras_contract.model import ContractModel

SCHEMA_VERSION = 2
CHECKPOINT_MANIFEST_FILE = "checkpoint.json"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
TRAINING_FILE = "training.json"
TRAINING_TENSORS_FILE = "training.safetensors"


class CheckpointManifest(ContractModel):
    """What a checkpoint holds. One that was converted from a plain state dict has weights and no more."""

    schema_version: int = SCHEMA_VERSION
    step: int
    artifact_key: str
    created_at: float
    optimizer: str
    hyperparameters: list[dict[str, JsonValue]]
    digests: dict[str, str]
    """The sha256 of the checkpoint's other files."""
    checksums: dict[str, dict[str, int]] = Field(default_factory=dict)
    """The CRC-32 of each tensor's bytes, by file and name: quick to check at a load, and says which is damaged."""
    extra: JsonValue = None
    """What the user wanted to ride along."""
