"""Kernels: pieces of a training step that the wafer does as one."""

from dataclasses import dataclass
from enum import StrEnum

from cerebras_contract.artifacts import Phase


class KernelKind(StrEnum):
    """The closed library of kernels."""

    MATMUL = "matmul"
    CONV2D = "conv2d"
    ATTENTION = "attention"
    NORM = "norm"
    SOFTMAX = "softmax"
    ACTIVATION = "activation"
    ELEMENTWISE = "elementwise"
    DROPOUT = "dropout"
    POOLING = "pooling"
    REDUCTION = "reduction"
    EMBEDDING = "embedding"
    LAYOUT = "layout"
    LOSS = "loss"


@dataclass(frozen=True)
class Kernel:
    """A kernel and the work in it, for one whole batch.

    `module` is the path of the user's module, `source` its file and line; `parameters` are the names of the
    weights it reads.
    """

    name: str
    kind: KernelKind
    phase: Phase
    module: str
    source: str | None
    operations: tuple[str, ...]
    multiply_adds: int
    elements: int
    output_bytes: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class KernelGraph:
    """The kernels of a training step in the order in which they run.

    `saved_bytes` are the activations that forward keeps for backward, for one whole batch.
    """

    kernels: tuple[Kernel, ...]
    saved_bytes: int

    def of(self, phase: Phase) -> list[Kernel]:
        return [kernel for kernel in self.kernels if kernel.phase == phase]
