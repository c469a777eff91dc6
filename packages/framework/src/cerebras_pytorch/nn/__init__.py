"""The standard layers of torch.nn, and the wrapper that scripts for the real system use."""

from typing import Any

from torch import nn as _nn
from torch.nn import *  # noqa: F403


class DataParallel(_nn.Module):  # type: ignore[no-redef]  # in place of PyTorch's of that name
    """Marks a model for data parallel training over the systems of a job; computes what `module` computes.

    Its name does not appear in checkpoints: those are of the bare module.
    """

    def __init__(self, module: _nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def bare_module(model: _nn.Module) -> _nn.Module:
    """The user's own module, without a `DataParallel` around it."""
    return bare_module(model.module) if isinstance(model, DataParallel) else model
