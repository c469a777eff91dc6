"""The loader: wraps the user's, and lets a training session count steps where a batch is asked for."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

import torch

from cerebras_contract.errors import ErrorCode
from cerebras_pytorch.data.random_state import random_state_kept
from cerebras_wafer.errors import CompileError


class StepCounter(Protocol):
    """What a loader needs of a training session."""

    def batches(self, source: Iterator[Any]) -> Iterator[Any]: ...


class DataLoader:
    """Yields the batches of `source`: a torch DataLoader, any iterable of batches, or a function that returns one.

    The loader given to `compile` becomes the training loader: it drops batches that are not of the compiled
    size, and ends with the last step. Others yield everything there is.
    """

    def __init__(self, source: Iterable[Any] | Callable[..., Iterable[Any]], *args: Any, **kwargs: Any) -> None:
        if callable(source) and not isinstance(source, Iterable):
            source = source(*args, **kwargs)
        if not isinstance(source, Iterable):
            raise TypeError(f"a DataLoader wraps an iterable of batches, not {type(source).__name__}")
        self.source: Iterable[Any] = source
        self._counter: StepCounter | None = None
        self._looked_at: list[Any] = []
        self._begun: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch."""
        batches = chain(self._looked_at, self.source if self._begun is None else self._begun)
        self._looked_at, self._begun = [], None
        return self._counter.batches(batches) if self._counter else batches

    def __len__(self) -> int:
        """Batches an epoch; of a training loader, full ones."""
        batches = len(self.source)  # type: ignore[arg-type]
        return batches - (1 if self._counter and self._last_is_ragged() else 0)

    def first_batch(self) -> Any:
        """The batch an epoch would begin with.

        Consumes neither it nor random numbers of the global generators and the torch loader's own. A source that
        cannot begin again goes on behind this batch in the first epoch.
        """
        if self._looked_at:
            return self._looked_at[0]
        with random_state_kept(self.source):
            iterator = iter(self.source)
            batch = next(iterator, None)
        if batch is None:
            raise CompileError(
                "the data loader yields no batch",
                code=ErrorCode.COMPILE_BAD_BATCH,
                advice="Iterate it by hand, before compile, to see what it yields.",
            )
        if self._is_stream(iterator):
            self._looked_at, self._begun = [batch], iterator
        return batch

    def attach(self, counter: StepCounter | None) -> None:
        """Make this the training loader of a session; None: of none any more."""
        self._counter = counter

    def _is_stream(self, iterator: Iterator[Any]) -> bool:
        """Whether the source may go on rather than begin again when it is iterated once more."""
        if isinstance(self.source, torch.utils.data.DataLoader):
            return isinstance(self.source.dataset, torch.utils.data.IterableDataset)
        return iter(self.source) is iterator

    def _last_is_ragged(self) -> bool:
        source = self.source
        if not isinstance(source, torch.utils.data.DataLoader) or source.batch_size is None or source.drop_last:
            return False
        return len(source.sampler) % source.batch_size != 0  # type: ignore[arg-type]
