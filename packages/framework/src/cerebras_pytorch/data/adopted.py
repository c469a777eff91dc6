"""A plain torch loader that was given to `compile`."""

import copy
from typing import Any

import torch
from typing_extensions import override

from cerebras_pytorch.data.loader import DataLoader, StepCounter


class AdoptedLoader(DataLoader):
    """Yields what a copy of a torch loader yields. While it is the training loader, so does the torch loader: the
    script may go on to use that, and its loops are counted."""

    def __init__(self, loader: "torch.utils.data.DataLoader[Any]") -> None:
        own = copy.copy(loader)
        vars(own).update(_iterator=None)  # persistent workers, if there are any, stay the script's
        super().__init__(own)
        self._loader = loader
        self._plain = type(loader)

    @override
    def attach(self, counter: StepCounter | None) -> None:
        super().attach(counter)
        through_this = type(self._plain.__name__, (self._plain,), {"__iter__": lambda _loader: iter(self)})
        self._loader.__class__ = self._plain if counter is None else through_this
