"""Helpers under the names that scripts for the real system use."""

from cerebras_pytorch.utils import config, data

__all__ = ["config", "data"]
