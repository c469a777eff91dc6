"""Checkpoints: safetensors and JSON, complete or absent."""

from cerebras_pytorch.checkpoints.read import read_checkpoint, state_dict

__all__ = ["read_checkpoint", "state_dict"]
