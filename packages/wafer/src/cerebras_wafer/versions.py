"""Versions that are ingredients of every key."""

from importlib.metadata import version

import torch

from cerebras_contract.artifacts import Versions

COMPILER_VERSION = version("cerebras-emulator-wafer")


def torch_version() -> str:
    """Torch's version without a local build tag, which does not change its programs."""
    return torch.__version__.split("+")[0]


def compiler_versions() -> Versions:
    return Versions(compiler=COMPILER_VERSION, torch=torch_version())
