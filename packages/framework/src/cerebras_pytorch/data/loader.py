"""The loader: wraps the user's, and lets a training session count steps where a batch is asked for."""

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import chain
from typing import Any, Protocol

import torch

from cerebras_contract.errors import ErrorCode
from cerebras_pytorch.data.position import Feed, seed_of
from cerebras_pytorch.data.prefetch import PrefetchedFeed
from cerebras_pytorch.data.random_state import random_state_kept, seed_generators
from cerebras_wafer.errors import CompileError


class StepCounter(Protocol):
    """What a loader needs of a training session."""

    @property
    def prefetch_batches(self) -> int:
        """How many batches are prepared beside training; 0: as the torch loader does by itself."""

    def batches(self, feed: Feed | PrefetchedFeed, *, leftovers: int) -> Iterator[Any]:
        """One epoch of `feed`, of which up to so many batches may be smaller than the others."""


class DataLoader:
    """Yields the batches of `source`: a torch DataLoader, any iterable of batches, or a function that returns one.

    The loader given to `compile` becomes the training loader: it drops what is left over at an epoch's end where
    that fills no batch, and ends with the last step. Others yield everything there is.
    """

    def __init__(self, source: Iterable[Any] | Callable[..., Iterable[Any]], *args: Any, **kwargs: Any) -> None:
        name = type(source).__name__
        if callable(source) and not isinstance(source, Iterable):
            called = getattr(source, "__name__", name)
            source = source(*args, **kwargs)
            name = f"the {type(source).__name__} that {called} returned"
        if not isinstance(source, Iterable):
            raise TypeError(f"a DataLoader wraps an iterable of batches, not {name}")
        self.source: Iterable[Any] = source
        self._counter: StepCounter | None = None
        self._feed: Feed | PrefetchedFeed | None = None
        self._seed: int | None = None
        self._looked_at: list[Any] = []
        self._begun: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch."""
        if self._counter and self._feed:
            return self._counter.batches(self._feed, leftovers=self._leftovers())
        batches = chain(self._looked_at, self.source if self._begun is None else self._begun)
        self._looked_at, self._begun = [], None
        return batches

    def __len__(self) -> int:
        """Batches an epoch; of a training loader, full ones."""
        batches = len(self.source)  # type: ignore[arg-type]
        return batches - (1 if self._counter and self._last_is_ragged() else 0)

    def first_batch(self, seed: int = 0) -> Any:
        """The batch an epoch would begin with.

        Consumes neither it nor random numbers of the global generators and the torch loader's own. A source that
        cannot begin again goes on behind this batch in the first epoch; it is begun from the run's `seed`.
        """
        if self._looked_at:
            return self._looked_at[0]
        self._seed = seed_of(seed, self.source)
        with random_state_kept(self.source):
            if self._goes_on():
                seed_generators(self._seed)
            iterator = iter(self.source)
            batch = next(iterator, None)
        if batch is None:
            raise self._no_batch()
        if self._goes_on():
            self._looked_at, self._begun = [batch], iterator
        return batch

    def _no_batch(self) -> CompileError:
        """What is known of why there is none."""
        source, why = self.source, ""
        advice = "Iterate it by hand, before compile, to see what it yields."
        if isinstance(source, torch.utils.data.DataLoader) and not self._goes_on():
            length, sampled = len(source.dataset), _length(source.sampler)  # type: ignore[arg-type]
            why = f": its dataset has {length} samples, batch_size is {source.batch_size}"
            why += f" and drop_last is {source.drop_last}"
            why += f"; its sampler gives {sampled} of them" if sampled not in (None, length) else ""
            if source.drop_last and length:
                advice = "With drop_last=True the dataset must fill a batch: take a smaller batch_size, or more data."
            elif not length:
                advice = "Look at how the dataset is made: a path or a filter may have left nothing."
        elif _length(source) == 0:
            why = f": the {type(source).__name__} that it wraps is empty"
        return CompileError(f"the data loader yields no batch{why}", code=ErrorCode.COMPILE_BAD_BATCH, advice=advice)

    def attach(self, counter: StepCounter | None) -> None:
        """Make this the training loader of a session; None: of none any more."""
        self._counter = counter
        if counter:
            feed = Feed(self.source, self.seed, self._looked_at, self._begun)
            self._looked_at, self._begun = [], None
            is_prefetched = counter.prefetch_batches and not getattr(self.source, "num_workers", 0)
            self._feed = PrefetchedFeed(feed, counter.prefetch_batches) if is_prefetched else feed
        elif self._feed:
            self._feed.end()

    @property
    def seed(self) -> int:
        """What the epochs of the training loader are drawn from."""
        if self._seed is None:
            self._seed = seed_of(0, self.source)
        return self._seed

    def draw_from(self, seed: int) -> None:
        """Draw epochs as another run did."""
        self._seed = seed
        if self._feed:
            self._feed.seed = seed

    def _goes_on(self) -> bool:
        """Whether the source may go on rather than begin again when it is iterated once more."""
        if isinstance(self.source, torch.utils.data.DataLoader):
            return isinstance(self.source.dataset, torch.utils.data.IterableDataset)
        return isinstance(self.source, Iterator)

    def _leftovers(self) -> int:
        """How many batches of an epoch may be smaller than the others: each worker of a stream has a last one."""
        source = self.source
        is_shared = isinstance(source, torch.utils.data.DataLoader) and self._goes_on()
        return max(1, source.num_workers) if is_shared else 1  # type: ignore[attr-defined]

    def _last_is_ragged(self) -> bool:
        source = self.source
        if not isinstance(source, torch.utils.data.DataLoader) or source.batch_size is None or source.drop_last:
            return False
        return len(source.sampler) % source.batch_size != 0  # type: ignore[arg-type]


def _length(source: object) -> int | None:
    """Its length, where it has one."""
    return len(source) if isinstance(source, Sized) else None
