"""Where training is in its data, and how the loader gets there again.

Each epoch, and each batch in it, is drawn from a seed of its own: the same epoch can be drawn again, up to any
batch, whatever was drawn before. A map dataset is skipped by position, so that no sample is loaded that is not
trained on; other sources are replayed.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.data.random_state import OwnGenerators, generators_of, seed_from, seed_generators


@dataclass(frozen=True)
class EpochRecord:
    """One time that the training loader was iterated: batches taken, whether it came to its end, whether it was
    trained on (a script may look at its batches, too)."""

    batches: int = 0
    ended: bool = False
    trained: bool = False


@dataclass
class Position:
    """The epochs so far; the last is the one in progress."""

    epochs: list[EpochRecord] = field(default_factory=list)

    def begin_epoch(self) -> int:
        """The number of an epoch that begins, from 0."""
        self.epochs.append(EpochRecord())
        return len(self.epochs) - 1

    def update(self, **changes: Any) -> None:
        """Note what is new of the epoch in progress."""
        self.epochs[-1] = replace(self.epochs[-1], **changes)

    @property
    def last(self) -> int:
        """The number of the epoch in progress."""
        return max(len(self.epochs) - 1, 0)

    @property
    def batches(self) -> int:
        """Batches taken in the epoch in progress."""
        return self.epochs[-1].batches if self.epochs else 0

    def __str__(self) -> str:
        return f"epoch {self.last + 1}, {self.batches} {'batch' if self.batches == 1 else 'batches'} into it"

    def as_plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [asdict(epoch) for epoch in self.epochs]

    @classmethod
    def from_plain(cls, plain: list[dict[str, Any]]) -> "Position":
        """From what `as_plain` gave."""
        return cls([EpochRecord(**epoch) for epoch in plain])


class Feed:
    """What a training loader yields, epoch by epoch.

    `begun` is an iterator of a source that may not begin again, and `looked_at` what was taken from it already. A
    source that `goes_on` is where it was when it is iterated once more.
    """

    def __init__(self, source: Iterable[Any], seed: int, looked_at: list[Any], begun: Iterator[Any] | None) -> None:
        self.seed = seed
        self._source = source
        self._looked_at, self._begun = looked_at, begun
        self._generators = generators_of(source)
        self._own = OwnGenerators(seed)
        self._drawn = 0
        with self._own.seeded(seed):  # to ask may draw
            self.goes_on = is_stream(source)
        self._may_draw = not isinstance(source, (list, tuple))
        self._positioned = _positioned(source)

    def epoch(self, number: int, past: Position | None = None) -> Iterator[Any]:
        """The batches of an epoch: of one that a run was resumed in, those behind `past`."""
        for place, generator in enumerate(self._generators):
            generator.manual_seed(seed_from(self.seed, number, "generator", place))
        if self._positioned is not None:
            return self._by_position(self._positioned, number, past.batches if past else 0)
        return self._by_replay(number, past)

    def pass_by(self, number: int, record: EpochRecord) -> None:
        """An epoch that is trained on already: what may remember it is brought to where it was."""
        if self._positioned is not None:
            self._sampler_of(self._positioned).pass_by(self.seed, number, record)
        elif _may_remember(self._source) and not self.goes_on:
            for _ in islice(self._by_replay(number, None), record.batches + record.ended):
                pass

    def _by_position(self, loader: "DataLoader[Any]", number: int, skipped: int) -> Iterator[Any]:
        sampler = self._sampler_of(loader)
        sampler.begin(self.seed, number, skipped)
        with self._own.seeded(seed_from(self.seed, number, "begin")):
            iterator = iter(loader)
        for drawing in count(skipped):
            with self._own.seeded(seed_from(self.seed, number, drawing)) if not loader.num_workers else nullcontext():
                batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    def _by_replay(self, number: int, past: Position | None) -> Iterator[Any]:
        skipped = past.batches if past else 0
        if past and self.goes_on:
            skipped = sum(epoch.batches for epoch in past.epochs) - self._drawn
        with self._own.seeded(seed_from(self.seed, number, "begin")):
            iterator = self._begin(number)
        for drawing in count():
            place = (self._drawn,) if self.goes_on else (number, drawing)
            with self._own.seeded(seed_from(self.seed, *place)) if self._may_draw else nullcontext():
                batch = next(iterator, None)
            if batch is None:
                return _refuse_less(number, drawing, skipped)
            self._drawn += 1
            if drawing >= skipped:
                yield batch

    def _begin(self, number: int) -> Iterator[Any]:
        looked_at, begun, self._looked_at, self._begun = self._looked_at, self._begun, [], None
        if begun is not None and (number == 0 or self.goes_on):
            return chain(looked_at, begun)
        return iter(self._source)

    def end(self) -> None:
        """Nothing is to be given back."""

    def _sampler_of(self, loader: "DataLoader[Any]") -> "_PositionedBatches":
        sampler = loader.batch_sampler
        assert isinstance(sampler, _PositionedBatches)
        return sampler


def seed_of(runconfig_seed: int, source: Iterable[Any]) -> int:
    """The seed of a loader's epochs: other seeds of the run, of torch or of the loader give another order."""
    given = [generator.initial_seed() for generator in generators_of(source)]
    return seed_from(runconfig_seed, torch.initial_seed(), *given)


def is_stream(source: Iterable[Any]) -> bool:
    """Whether a source that is iterated once more goes on where it was."""
    if isinstance(source, DataLoader):
        dataset = source.dataset
        in_this_process = source.num_workers == 0
        return isinstance(dataset, IterableDataset) and in_this_process and iter(dataset) is iter(dataset)
    return isinstance(source, Iterator)


def _may_remember(source: Iterable[Any]) -> bool:
    """Whether an epoch may change what the next one yields."""
    if isinstance(source, DataLoader):
        return source.num_workers == 0 or source.persistent_workers
    return not isinstance(source, (list, tuple))


def _positioned(source: Iterable[Any]) -> "DataLoader[Any] | None":
    """A copy of a torch loader over a map dataset that can begin at any batch; None for another source."""
    if not isinstance(source, DataLoader) or type(source).__iter__ is not DataLoader.__iter__:
        return None
    if isinstance(source.dataset, IterableDataset) or source.batch_sampler is None:
        return None
    loader = copy.copy(source)
    # Past the check that a loader's sampler is not set anew: this one is our own copy, not iterated so far.
    vars(loader).update(batch_sampler=_PositionedBatches(source.batch_sampler), _iterator=None)
    return loader


def _refuse_less(epoch: int, batches: int, skipped: int) -> None:
    if batches < skipped:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CHECKPOINT_MISMATCH,
                message=f"the training loader ended after {batches} batches of epoch {epoch + 1}; when the checkpoint"
                f" was saved it had given {skipped}",
                advice="A run goes on with the data that it began with.",
            )
        )


class _PositionedBatches(Sampler[list[int]]):
    """A batch sampler that draws from generators of its own and begins behind a number of batches."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        parts = (batches, getattr(batches, "sampler", None))
        self._is_torchs = all(type(part).__module__ == "torch.utils.data.sampler" for part in parts)
        self._seed = self._epoch = self._skipped = 0

    def begin(self, seed: int, epoch: int, skipped: int) -> None:
        """What the next iteration is to yield."""
        self._seed, self._epoch, self._skipped = seed, epoch, skipped

    def pass_by(self, seed: int, epoch: int, record: EpochRecord) -> None:
        """Draw the indices of an epoch, for a sampler that may remember its epochs; torch's own do not."""
        if not self._is_torchs:
            self.begin(seed, epoch, 0)
            for _ in islice(self, record.batches + record.ended):
                pass

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, skipped = self._epoch, self._skipped
        own = OwnGenerators(seed_from(self._seed, epoch, "sampler"))
        with own.going_on():
            iterator = iter(self._batches)
        drawn = 0
        while True:
            # torch's samplers draw from global generators only before their first batch.
            with nullcontext() if self._is_torchs and drawn else own.going_on():
                batch = next(iterator, None)
            if batch is None:
                return _refuse_less(epoch, drawn, skipped)
            drawn += 1
            if drawn > skipped:
                yield _SeededIndices(batch, seed_from(self._seed, epoch, drawn))


class _SeededIndices(list[int]):
    """The indices of a batch. Whoever loads it, this process or a worker, goes through them: then the global
    generators are set, so that random changes of samples depend on nothing but seed, epoch and batch."""

    def __init__(self, indices: Iterable[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        seed_generators(self.seed)
        return super().__iter__()

    def __reduce__(self) -> Any:
        return _SeededIndices, (list(super().__iter__()), self.seed)
