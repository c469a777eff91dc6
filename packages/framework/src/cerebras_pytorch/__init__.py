"""The PyTorch front end: what a training script imports as `cbt`.

with cbt.init_context() as context:
    compiled_model = cbt.compile(model, optimizer, criterion, train_loader)
"""

from importlib.metadata import version

import cerebras_pytorch.nn.utils  # noqa: F401 (as cbt.nn.utils)
from cerebras_pytorch import amp, nn, utils
from cerebras_pytorch.amp import cbfloat16
from cerebras_pytorch.compilation import compile  # noqa: A004 (the name scripts use)
from cerebras_pytorch.context import Context, init_context, load, log_metrics, profile, save
from cerebras_wafer.errors import CompileError

__version__ = version("cerebras-emulator-pytorch")

__all__ = [
    "CompileError",
    "Context",
    "__version__",
    "amp",
    "cbfloat16",
    "compile",
    "init_context",
    "load",
    "log_metrics",
    "nn",
    "profile",
    "save",
    "utils",
]
