"""Versions that are ingredients of every key."""

import platform
from importlib.metadata import version
from pathlib import Path

import torch

from cerebras_contract.artifacts import Machine, Versions

COMPILER_VERSION = version("cerebras-emulator-wafer")


def torch_version() -> str:
    """Torch's version without a local build tag, which does not change its programs."""
    return torch.__version__.split("+")[0]


def instruction_set() -> str:
    """What generated code may use of this processor, as `x86_64 AVX512`."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def this_machine() -> Machine:
    return Machine(processor=_processor(), instruction_set=instruction_set(), threads=torch.get_num_threads())


def _processor() -> str:
    """The name of the processor's model, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def compiler_versions() -> Versions:
    return Versions(compiler=COMPILER_VERSION, torch=torch_version())
