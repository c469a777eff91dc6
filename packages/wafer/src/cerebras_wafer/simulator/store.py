"""The store: parameters, gradients and optimizer state, in one piece of memory or in one file that is mapped.

The tensors of one kind (`parameter`, `gradient`, `state/exp_avg`) of the parameters that one elementwise update takes
lie behind each other, so that the update can take them, or any part of them, as one flat tensor.
"""

import math
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from cerebras_contract.artifacts import UpdateSpec

ALIGNED_ELEMENTS = 16  # a cache line of float32
ALIGNED_BYTES = mmap.PAGESIZE
PART_ELEMENTS = 1 << 24  # of a copy


class Memory(ABC):
    """Bytes, zero at first, and what can be said of parts of them that are about to be used, or no longer are."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._map = mapping
        self._base = torch.frombuffer(mapping, dtype=torch.uint8).data_ptr()

    def tensor(self, dtype: torch.dtype, first_byte: int, elements: int) -> Tensor:
        """A flat tensor of these bytes. It has a storage of its own: who saves or copies it takes no others along."""
        if not elements:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=elements, offset=first_byte)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in these bytes."""
        return 0 <= tensor.data_ptr() - self._base < len(self._map)

    @abstractmethod
    def will_need(self, parts: Iterable[Tensor]) -> None:
        """Bring in what is on disk only, beside what goes on."""

    @abstractmethod
    def let_go(self, parts: Iterable[Tensor]) -> None:
        """Hold it in memory no longer. Its values stay."""


class ResidentMemory(Memory):
    """Memory of the process; everything stays in it."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    @override
    def will_need(self, parts: Iterable[Tensor]) -> None:
        """Nothing to do."""

    @override
    def let_go(self, parts: Iterable[Tensor]) -> None:
        """Nothing to do."""


class MappedMemory(Memory):
    """A file without a name in `folder`, mapped: pages that are let go stay in the file, not in the process.

    Its room on the disk is taken at once: a full disk is an `OSError` here, not a killed process later.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._folder = folder
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(max(size_bytes, 1))
            if hasattr(os, "posix_fallocate"):  # macOS has none: there a full disk shows later
                os.posix_fallocate(file.fileno(), 0, max(size_bytes, 1))
            super().__init__(mmap.mmap(file.fileno(), max(size_bytes, 1)))

    @override
    def will_need(self, parts: Iterable[Tensor]) -> None:
        self._advise(mmap.MADV_WILLNEED, parts)

    @override
    def let_go(self, parts: Iterable[Tensor]) -> None:
        """Whole pages go; what lies beside the parts comes back from the file when it is used."""
        self._advise(mmap.MADV_DONTNEED, parts)

    def copies_of(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], "MappedMemory"]:
        """Copies in another file, a part at a time, so that neither the tensors nor they fill the memory."""
        ends = list(accumulate(math.ceil(tensor.nbytes / ALIGNED_BYTES) * ALIGNED_BYTES for tensor in tensors.values()))
        memory = MappedMemory(self._folder, ends[-1] if ends else 0)
        copies = {}
        for (name, tensor), start in zip(tensors.items(), [0, *ends], strict=False):
            copy = memory.tensor(tensor.dtype, start, tensor.numel())
            parts = (torch.split(whole, PART_ELEMENTS) for whole in (tensor.reshape(-1), copy))
            for source, target in zip(*parts, strict=True):
                target.copy_(source)
                self.let_go([source])
                memory.let_go([target])
            copies[name] = copy.view(tensor.shape)
        return copies, memory

    def _advise(self, advice: int, parts: Iterable[Tensor]) -> None:
        for first, last in _joined((part.data_ptr() - self._base, part.nbytes) for part in parts if self.holds(part)):
            self._map.madvise(advice, first, last - first)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pages of spans (first byte, bytes), those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, size in sorted(spans):
        start = first - first % mmap.PAGESIZE
        end = first + size
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif size:
            joined.append((start, end))
    return joined


@dataclass(frozen=True)
class Block:
    """Tensors of one kind behind each other in `flat`; places are in elements, and what lies between two is zero."""

    flat: Tensor
    starts: dict[str, int]
    """By the parameter's name."""


class Store:
    """Tensors by role: `parameter:NAME`, `gradient:NAME`, `state:NAME/key`.

    `examples` has the shape, strides and dtype of each parameter and each state, on any device. Those of the calls of
    elementwise updates form blocks; any other tensor is a block of its own.
    """

    def __init__(
        self, examples: Mapping[str, Tensor], updates: Sequence[UpdateSpec], memory_of: Callable[[int], Memory]
    ) -> None:
        examples = {**examples, **_gradients(examples, updates)}
        layout = _Layout(examples)
        for update in updates:
            for names in update.calls:
                layout.add_call(names, joined=update.elementwise)
        for role in examples:
            layout.add([role])
        self.memory = memory_of(layout.size_bytes)
        self.tensors: dict[str, Tensor] = {}
        self._blocks: dict[str, Block] = {}
        for roles, starts, first_byte, elements in layout.blocks:
            example = examples[roles[0]]
            flat = self.memory.tensor(example.dtype, first_byte, elements)
            block = Block(flat, {owner_of(role): start for role, start in zip(roles, starts, strict=True)})
            for role, start in zip(roles, starts, strict=True):
                self._blocks[role] = block
                place = first_byte + start * example.element_size()
                self.tensors[role] = _shaped(
                    self.memory.tensor(example.dtype, place, examples[role].numel()), examples[role]
                )

    def block(self, role: str) -> Block:
        """The block that a tensor is in."""
        return self._blocks[role]

    def will_need(self, roles: Iterable[str]) -> None:
        """These are used soon."""
        self.memory.will_need(self.tensors[role] for role in roles)

    def let_go(self, roles: Iterable[str]) -> None:
        """These are not used for a while."""
        self.memory.let_go(self.tensors[role] for role in roles)


def aligned_elements(elements: int) -> int:
    """What a tensor takes of its block, with what lies between it and the next one."""
    return math.ceil(elements / ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS


class _Layout:
    """Where each tensor lies: blocks in the order in which they were added, each from a page's start."""

    def __init__(self, examples: Mapping[str, Tensor]) -> None:
        self.blocks: list[tuple[list[str], list[int], int, int]] = []
        """Roles, their first elements, the block's first byte, its elements."""
        self.size_bytes = 0
        self._examples = examples
        self._placed: set[str] = set()

    def add_call(self, names: list[str], *, joined: bool) -> None:
        kinds = dict.fromkeys(_kind(role) for role in self._examples if owner_of(role) == names[0])
        for kind in kinds:
            roles = [_role(kind, name) for name in names]
            for part in [roles] if joined else [[role] for role in roles]:
                self.add(part)

    def add(self, roles: list[str]) -> None:
        if self._placed.issuperset(roles):
            return
        starts, elements = [], 0
        for role in roles:
            starts.append(elements)
            size = self._examples[role].numel()
            elements += aligned_elements(size) if self._examples[role].dim() else 1
        self.blocks.append((roles, starts, self.size_bytes, elements))
        size_bytes = elements * self._examples[roles[0]].element_size()
        self.size_bytes += math.ceil(size_bytes / ALIGNED_BYTES) * ALIGNED_BYTES
        self._placed.update(roles)


def _gradients(examples: Mapping[str, Tensor], updates: Sequence[UpdateSpec]) -> dict[str, Tensor]:
    """A gradient is as its parameter."""
    trained = [name for update in updates for names in update.calls for name in names]
    return {f"gradient:{name}": examples[f"parameter:{name}"] for name in trained}


def _shaped(flat: Tensor, example: Tensor) -> Tensor:
    """With the example's shape, and its strides where these leave no gaps."""
    if torch.ops.aten.is_non_overlapping_and_dense(example):
        return flat.as_strided(example.shape, example.stride())
    return flat.view(example.shape)


def _kind(role: str) -> str:
    """`parameter`, `gradient` or `state/exp_avg`."""
    kind = role.split(":", 1)[0]
    return f"{kind}/{role.rsplit('/', 1)[1]}" if kind == "state" else kind


def _role(kind: str, name: str) -> str:
    kind, slash, key = kind.partition("/")
    return f"{kind}:{name}{slash}{key}"


def owner_of(role: str) -> str:
    """The parameter that `parameter:NAME` or `state:NAME/key` belongs to."""
    name = role.split(":", 1)[1]
    return name.rsplit("/", 1)[0] if role.startswith("state:") else name
