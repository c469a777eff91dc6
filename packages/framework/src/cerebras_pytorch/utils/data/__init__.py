"""Data loaders."""

from cerebras_pytorch.data.loader import DataLoader

__all__ = ["DataLoader"]
