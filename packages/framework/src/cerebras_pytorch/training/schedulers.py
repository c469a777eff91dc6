"""The learning-rate schedulers of an optimizer, in the order in which the script made them.

PyTorch keeps no list of them. So each is noted as it is made, weakly: one that the script let go is no longer there.
"""

import functools
import weakref
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR

_made: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[LRScheduler]]] = weakref.WeakKeyDictionary()


def schedulers_of(optimizer: Optimizer) -> list[LRScheduler]:
    """Those that are still there. Parts of a `SequentialLR` or `ChainedScheduler` are among them, before it."""
    made = (reference() for reference in _made.get(optimizer, []))
    return [scheduler for scheduler in made if scheduler is not None]


def _note(scheduler: LRScheduler) -> None:
    optimizer = getattr(scheduler, "optimizer", None)
    if isinstance(optimizer, Optimizer) and all(scheduler is not known for known in schedulers_of(optimizer)):
        _made.setdefault(optimizer, []).append(weakref.ref(scheduler))


def _noted(kind: type[LRScheduler]) -> None:
    make = kind.__init__

    @functools.wraps(make)
    def make_and_note(self: LRScheduler, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        _note(self)

    kind.__init__ = make_and_note  # type: ignore[method-assign]


# The last three do not call the first one's.
for _kind in (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler):
    _noted(_kind)
