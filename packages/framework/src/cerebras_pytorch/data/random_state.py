"""The random generators of this process: to draw without the user noticing, from a seed, or to go on from a state."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand


@contextmanager
def random_state_kept(source: Any) -> Iterator[None]:
    """Put back the state of the global generators, and of those that a torch loader holds, at the end."""
    generators = generators_of(source)
    states = [generator.get_state() for generator in generators]
    numpy_state = np.random.get_state()
    try:
        with _put_back_after():
            yield
    finally:
        np.random.set_state(numpy_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


class OwnGenerators:
    """Global generators of one's own: what draws from them does not move on those of everybody else."""

    def __init__(self, seed: int) -> None:
        self._numpy = np.random.MT19937()
        with self.seeded(seed):
            self._torch, self._python = torch.get_rng_state(), random.getstate()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Inside, the global generators are these, from a seed."""
        with self._in_place():
            seed_generators(seed)
            yield

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Inside, the global generators are these, from where they were left."""
        with self._in_place():
            torch.set_rng_state(self._torch)
            random.setstate(self._python)
            try:
                yield
            finally:
                self._torch, self._python = torch.get_rng_state(), random.getstate()

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        outside = mtrand.get_bit_generator()
        mtrand.set_bit_generator(self._numpy)  # 0.3 us; to set its state takes 130
        try:
            with _put_back_after():
                yield
        finally:
            mtrand.set_bit_generator(outside)


@contextmanager
def _put_back_after() -> Iterator[None]:
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)


def seed_generators(seed: int) -> None:
    """Set the global generators of torch, Python and numpy."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)


def seed_from(*ingredients: object) -> int:
    """A seed of 63 bits, the same for the same ingredients in every process."""
    digest = hashlib.sha256("/".join(map(str, ingredients)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generators_of(source: Any) -> list[torch.Generator]:
    """The generators that a torch loader was given, each once."""
    holders = (source, getattr(source, "sampler", None), getattr(source, "batch_sampler", None))
    found = (getattr(holder, "generator", None) for holder in holders)
    generators = {id(generator): generator for generator in found if isinstance(generator, torch.Generator)}
    return list(generators.values())


def global_state() -> dict[str, Any]:
    """The state of the global generators."""
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }


def set_global_state(state: dict[str, Any]) -> None:
    """Go on from what `global_state` gave."""
    torch.set_rng_state(state["torch"])
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
