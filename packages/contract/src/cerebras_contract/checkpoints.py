"""A checkpoint: `checkpoints/step_N/`, complete or absent.

checkpoint.json      `CheckpointManifest`, written last
model.safetensors    parameters and buffers, by the bare module's names (no `module.` before them)
optimizer.safetensors    state tensors, named `parameter/state`
"""

from pydantic import JsonValue

from cerebras_contract.model import ContractModel

SCHEMA_VERSION = 1
CHECKPOINT_MANIFEST_FILE = "checkpoint.json"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"


class CheckpointManifest(ContractModel):
    """What a checkpoint holds; `digests` are the sha256 of its other files."""

    schema_version: int = SCHEMA_VERSION
    step: int
    artifact_key: str
    created_at: float
    optimizer: str
    hyperparameters: list[dict[str, JsonValue]]
    digests: dict[str, str]
