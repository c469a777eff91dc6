"""What was called to make and initialise tensors on the meta device, in order: the tape."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from cerebras_pytorch.capture.stacks import Place

STAND_IN_WORDS = 8, 9
"""Of the words of 64 bits in which a generator tells its state, two of the 624 from which it draws."""
STAND_IN_MARK = 0x6D657461

_aten = torch.ops.aten
OVERWRITING = frozenset(
    getattr(_aten, name)
    for name in (
        *("zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_"),
        *("log_normal_", "bernoulli_"),
    )
)
"""Operations that write every element of their first argument without reading it."""


@dataclass(frozen=True)
class Part:
    """A tensor as a part of a storage."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def fills(self, size_bytes: int) -> bool:
        """Whether it is every byte of a storage of this size, each once."""
        elements = 1
        for stride, length in sorted(zip(self.strides, self.shape, strict=True)):
            if length != 1:
                if stride != elements:
                    return False
                elements *= length
        return not self.offset and elements * self.dtype.itemsize == size_bytes


@dataclass(frozen=True)
class Draw:
    """That a call draws from a generator. It begins at a state, or at where an earlier draw, by number, had ended."""

    number: int
    generator: torch.Generator
    begins: Tensor | int


@dataclass(frozen=True)
class Call:
    """A function that was called; tensors on the meta device among `args`, `kwargs` and `results` are `Part`s."""

    function: Any
    args: Any
    kwargs: Any
    results: Any
    draws: tuple[Draw, ...]
    place: Place | None
    """The user's line."""

    @cached_property
    def arguments(self) -> list[Part]:
        return _parts((self.args, self.kwargs))

    @cached_property
    def made(self) -> list[Part]:
        """Results in storages that are new."""
        before = {part.storage for part in self.arguments}
        return [part for part in _parts(self.results) if part.storage not in before]

    @cached_property
    def written(self) -> list[Part]:
        """Arguments that it changes."""
        if not isinstance(self.function, OpOverload):
            return self.arguments  # an initialiser of torch's: of one tensor
        schema = self.function._schema.arguments
        given = {**{one.name: value for one, value in zip(schema, self.args, strict=False)}, **self.kwargs}
        return _parts([given.get(one.name) for one in schema if one.alias_info and one.alias_info.is_write])

    @cached_property
    def changed(self) -> set[int]:
        """Storages that it makes or writes to."""
        return {part.storage for part in (*self.written, *self.made)}

    @cached_property
    def storages(self) -> set[int]:
        return {part.storage for part in (*self.arguments, *self.made)}

    @property
    def is_overwriting(self) -> bool:
        return not isinstance(self.function, OpOverload) or self.function.overloadpacket in OVERWRITING


@dataclass
class Tape:
    """Calls in order. Storages are kept, so that none takes another's place; those of the meta device take no memory.

    Nothing is drawn on the meta device. So that it is known later whether a script has seeded a generator since, even
    with the same seed, each draw leaves a state there that stands in for the one that it would have left.
    """

    calls: list[Call] = field(default_factory=list)
    known_states: dict[int, Tensor] = field(default_factory=dict)
    """The state that a draw leaves, by its number, where it was needed already."""
    _storages: dict[int, tuple[int, torch.UntypedStorage]] = field(default_factory=dict)
    _by_number: list[torch.UntypedStorage] = field(default_factory=list)
    _stand_ins: dict[bytes, int] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def add(
        self,
        function: Any,
        args: Any,
        kwargs: Any,
        results: Any,
        generators: tuple[torch.Generator, ...],
        place: Place | None,
    ) -> None:
        """Note a call; it draws from `generators`."""
        args_, kwargs_, results_ = pytree.tree_map_only(Tensor, self.part, (args, kwargs, results))
        draws = tuple(self._draw(generator) for generator in generators)
        self.calls.append(Call(function, args_, kwargs_, results_, draws, place))

    def part(self, tensor: Tensor) -> Any:
        """A tensor on the meta device as a part of its storage; of another one a copy."""
        if not tensor.is_meta:
            return tensor.detach().clone()  # as it is now
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = len(self._by_number), storage
            self._by_number.append(storage)
        number = self._storages[storage._cdata][0]
        return Part(number, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def size_bytes(self, storage: int) -> int:
        return self._by_number[storage].nbytes()

    def stands_for(self, generator: torch.Generator) -> int | None:
        """The draw whose end a generator's state stands for; None where the state is one."""
        return self._stand_ins.get(_digest(generator.get_state()))

    def generators(self) -> list[torch.Generator]:
        """Those that were drawn from, each once."""
        return list(dict.fromkeys(draw.generator for call in self.calls for draw in call.draws))

    def _draw(self, generator: torch.Generator) -> Draw:
        number, before = next(self._numbers), self.stands_for(generator)
        state = generator.get_state()
        stand_in = state.clone()
        words = stand_in.view(torch.int64)
        words[STAND_IN_WORDS[0]], words[STAND_IN_WORDS[1]] = STAND_IN_MARK, number
        generator.set_state(stand_in)
        self._stand_ins[_digest(stand_in)] = number
        return Draw(number, generator, state if before is None else before)


def _digest(state: Tensor) -> bytes:
    return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).digest()


def _parts(values: Any) -> list[Part]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Part)]
