"""Look at something without drawing from any random generator that the user could notice."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def random_state_kept(source: Any) -> Iterator[None]:
    """Put back the state of the global generators, and of those that a torch loader holds, at the end."""
    generators = _generators_of(source)
    states = [generator.get_state() for generator in generators]
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _generators_of(source: Any) -> list[torch.Generator]:
    holders = (source, getattr(source, "sampler", None), getattr(source, "batch_sampler", None))
    found = (getattr(holder, "generator", None) for holder in holders)
    return [generator for generator in found if isinstance(generator, torch.Generator)]
