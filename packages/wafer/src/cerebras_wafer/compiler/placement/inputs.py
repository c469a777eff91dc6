"""What comes from the hosts for each sample."""

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import Kernel, KernelGraph, KernelKind

_ROW_NUMBER_BYTES = 4
_INPUT = "input:"


def input_bytes(graph: KernelGraph, value_bytes: int) -> float:
    """Bytes of all inputs of a sample; `value_bytes` is the width of values in the compute type."""
    return sum(input_bytes_by_kernel(graph, value_bytes).values())


def input_bytes_by_kernel(graph: KernelGraph, value_bytes: int) -> dict[str, float]:
    """Bytes of a sample's inputs by the kernel that reads them; an input that several read comes once, to the one
    that reads most of it."""
    largest: dict[str, tuple[float, str]] = {}
    for kernel in graph.of(Phase.FORWARD):
        for read in kernel.reads:
            if read.startswith(_INPUT):
                largest[read] = max(
                    largest.get(read, (0.0, kernel.name)), (_bytes_read(kernel, value_bytes), kernel.name)
                )
    found: dict[str, float] = {}
    for size, name in largest.values():
        found[name] = found.get(name, 0.0) + size / graph.batch_size
    return found


def _bytes_read(kernel: Kernel, value_bytes: int) -> float:
    """Bytes of the operand that is no weight, for the whole batch."""
    size = dict(kernel.extents)
    match kernel.kind:
        case KernelKind.MATMUL if size:
            return float(size["batch"] * size["rows"] * size["inner"] * value_bytes)
        case KernelKind.CONV2D if size:
            return float(size["batch"] * size["channels_in"] * size["height"] * size["width"] * value_bytes)
        case KernelKind.EMBEDDING if kernel.shape:
            return float(kernel.elements / kernel.shape[-1] * _ROW_NUMBER_BYTES)
    return float(kernel.output_bytes)
