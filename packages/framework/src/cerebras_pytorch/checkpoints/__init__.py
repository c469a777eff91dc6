"""Checkpoints: safetensors and JSON, complete or absent."""

from cerebras_pytorch.checkpoints.read import Checkpoint, read_checkpoint, state_dict

__all__ = ["Checkpoint", "read_checkpoint", "state_dict"]
