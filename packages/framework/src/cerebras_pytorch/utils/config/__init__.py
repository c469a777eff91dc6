"""The run configuration that a script sets by itself."""

from cerebras_pytorch.settings import RunConfig

__all__ = ["RunConfig"]
