"""Kernels: pieces of a training step that the wafer does as one, and the graph they form."""

from dataclasses import dataclass, field
from enum import StrEnum

from cerebras_contract.artifacts import ComputeFormat
from cerebras_contract.plans import Phase
from cerebras_wafer.hardware.work import WorkClass

KERNEL = "kernel:"
PARAMETER = "parameter:"


class KernelKind(StrEnum):
    """The closed library of kernels. A conv2d is an implicit matrix product; pooling is a reduction."""

    MATMUL = "matmul"
    CONV2D = "conv2d"
    ATTENTION = "attention"
    NORM = "norm"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    EMBEDDING = "embedding"
    REDUCTION = "reduction"
    LOSS = "loss"
    LAYOUT = "layout"
    UPDATE = "update"


# Kinds whose work is multiply-adds: each operation of these is a kernel of its own in forward.
HEAVY_KINDS = frozenset({KernelKind.MATMUL, KernelKind.CONV2D, KernelKind.ATTENTION})

# The names of a kernel's extents, in order; kinds that are not here have none.
EXTENTS: dict[KernelKind, tuple[str, ...]] = {
    KernelKind.MATMUL: ("batch", "rows", "inner", "columns"),
    KernelKind.CONV2D: (
        "batch", "channels_in", "channels_out", "groups", "kernel_height", "kernel_width", "height", "width",
    ),
    KernelKind.ATTENTION: ("batch", "heads", "query", "key", "width"),
}  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """A parameter of the model. `state_elements` is what the optimizer keeps for it: Adam, twice its own.

    `tied_to` names the parameter that this one is another name of; that one has the gradient and the state.
    """

    name: str
    shape: tuple[int, ...]
    trained: bool
    state_elements: int
    tied_to: str | None = None


@dataclass(frozen=True)
class Kernel:
    """A kernel and the work in it, for the whole batch of its graph.

    `reads` names where its operands come from: `kernel:NAME`, `parameter:NAME`, `buffer:NAME`, `input:0`,
    `target:0`. `shape` and `dtype` are of its result. Bytes are as on the wafer, floating-point values in the
    compute type: `output_bytes` is what other kernels read of it, `saved_bytes` what forward keeps for backward.
    """

    name: str
    kind: KernelKind
    phase: Phase
    module: str
    source: str | None
    operations: tuple[str, ...]
    reads: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    extents: tuple[tuple[str, int], ...]
    multiply_adds: int
    element_work: tuple[tuple[WorkClass, int], ...]
    output_bytes: int
    saved_bytes: int
    grows_with_batch: bool

    @property
    def elements(self) -> int:
        return sum(elements for _, elements in self.element_work)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the weights it reads."""
        return tuple(read.removeprefix(PARAMETER) for read in self.reads if read.startswith(PARAMETER))

    @property
    def producers(self) -> tuple[str, ...]:
        """Names of the kernels it reads."""
        return tuple(read.removeprefix(KERNEL) for read in self.reads if read.startswith(KERNEL))


@dataclass(frozen=True)
class KernelGraph:
    """The kernels of a training step in the order in which they run, and the weights they read."""

    batch_size: int
    compute_dtype: str
    weights: tuple[Weight, ...]
    kernels: tuple[Kernel, ...]
    _by_phase: dict[Phase, list[Kernel]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for kernel in self.kernels:
            self._by_phase.setdefault(kernel.phase, []).append(kernel)

    def of(self, phase: Phase) -> list[Kernel]:
        return self._by_phase.get(phase, [])

    @property
    def compute_format(self) -> ComputeFormat:
        return ComputeFormat(self.compute_dtype)

    @property
    def value_bytes(self) -> int:
        """Width of a value in the compute type."""
        return self.compute_format.layout.size_bytes

    @property
    def own_weights(self) -> tuple[Weight, ...]:
        """The weights, each once."""
        return tuple(weight for weight in self.weights if weight.tied_to is None)

    @property
    def saved_bytes(self) -> int:
        """Activations that forward keeps for backward, for the whole batch."""
        return sum(kernel.saved_bytes for kernel in self.kernels)
