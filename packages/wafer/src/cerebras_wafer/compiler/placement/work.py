"""Work of kernels in PE-cycles: one PE would take so many cycles for it."""

import math
from collections.abc import Iterable, Mapping

from cerebras_contract.plans import Phase
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.ir.kernels import HEAVY_KINDS, Kernel, KernelGraph, KernelKind
from cerebras_wafer.compiler.placement.constants import PipelinedConstants
from cerebras_wafer.hardware.costs import element_cycles

_FORWARD_SHARE_OF_ADAPTERS = 1 / 3  # one of the three matrix products of a training step
_EXPONENTIALS = ("softmax", "cross_entropy")


def stage_pe_cycles(
    kernels: Iterable[Kernel], system: SystemSpec, half: bool, constants: PipelinedConstants
) -> dict[str, float]:
    """PE-cycles of each kernel of one stage, by name, for the graph's whole batch.

    Besides its multiply-adds and elements, a matrix product pays for bringing its activations to the PEs and
    taking them away (fans, adapters, conversions of layout) at two sides of their rectangle; a third in forward.
    """
    kernels = list(kernels)
    rate = constants.multiply_adds_per_cycle(system.multiply_adds_per_cycle(half))
    found = {kernel.name: _own_pe_cycles(kernel, rate) for kernel in kernels}
    adapters = {kernel.name: _adapter_pe_cycles(kernel, constants) for kernel in kernels}
    backward = [kernel for kernel in kernels if kernel.phase == Phase.BACKWARD and kernel.kind in HEAVY_KINDS]
    multiply_adds = sum(kernel.multiply_adds for kernel in backward)
    for kernel in kernels:
        found[kernel.name] += adapters[kernel.name] * _FORWARD_SHARE_OF_ADAPTERS
    for kernel in backward:
        share = kernel.multiply_adds / multiply_adds if multiply_adds else 1 / len(backward)
        found[kernel.name] += sum(adapters.values()) * (1 - _FORWARD_SHARE_OF_ADAPTERS) * share
    return found


def serial_cycles(
    kernels: Iterable[Kernel], lookups: Mapping[str, float], system: SystemSpec, constants: PipelinedConstants
) -> float:
    """Cycles of a batch that more PEs do not shorten: values of a row that come to a PE one after the other.

    The long side of a weight lies along a side of the fabric at most, so a PE has that part of it to take in or to
    give away for each row: little in most layers, a fifth of the time in the head of a language model. And every PE
    of a table looks at every row that is looked up. `lookups` counts these by the table's name, in a batch.
    """
    side = max(system.fabric_columns, system.fabric_rows)
    cycles, tables = 0.0, set[str]()
    for kernel in kernels:
        size = dict(kernel.extents)
        if kernel.kind == KernelKind.MATMUL and size and kernel.parameters:
            columns = max(size["inner"], size["columns"]) / side
            cycles += constants.serial_cycles_per_column * size["batch"] * size["rows"] * columns
        tables.update(name for name in kernel.parameters if name in lookups)
    return cycles + constants.lookup_cycles_per_row * sum(lookups[name] for name in sorted(tables))


def lookups_of(graph: KernelGraph) -> dict[str, float]:
    """Rows that a batch looks up, by the name of the table."""
    widths = {weight.name: weight.shape[-1] for weight in graph.weights if weight.shape}
    found: dict[str, float] = {}
    for kernel in graph.of(Phase.FORWARD):
        if kernel.kind == KernelKind.EMBEDDING:
            for name in kernel.parameters:
                found[name] = found.get(name, 0.0) + kernel.elements / widths.get(name, 1)
    return found


def floor_cycles(kernels: Iterable[Kernel], shapes: dict[str, tuple[int, ...]], constants: PipelinedConstants) -> float:
    """Cycles below which a batch cannot go, however many PEs: a softmax loss handles its rows one by one."""
    return sum(
        constants.loss_floor_cycles_per_row * _rows(kernel, shapes)
        for kernel in kernels
        if kernel.kind == KernelKind.LOSS and any(word in name for name in kernel.operations for word in _EXPONENTIALS)
    )


def _own_pe_cycles(kernel: Kernel, rate: float) -> float:
    return kernel.multiply_adds / rate + element_cycles(kernel.element_work)


def _adapter_pe_cycles(kernel: Kernel, constants: PipelinedConstants) -> float:
    size = dict(kernel.extents)
    match kernel.kind:
        case KernelKind.MATMUL if size and kernel.parameters:
            elements = size["batch"] * size["rows"] * _sides(size["inner"], size["columns"])
            return elements * constants.adapter_cycles_per_element
        case KernelKind.MATMUL if size:  # half of an attention core, written out
            elements = size["batch"] * size["rows"] * min(size["inner"], size["columns"])
            return elements * constants.attention_cycles_per_element / 2
        case KernelKind.CONV2D if size:
            pixels = size["batch"] * size["height"] * size["width"]
            elements = pixels * _sides(size["channels_in"], size["channels_out"])
            return elements * constants.adapter_cycles_per_element
        case KernelKind.ATTENTION if size:
            elements = size["batch"] * size["heads"] * size["query"] * size["width"]
            return elements * constants.attention_cycles_per_element
    return 0.0


def _rows(kernel: Kernel, shapes: dict[str, tuple[int, ...]]) -> float:
    """Rows of the logits; the classes are taken to be their largest extent."""
    read = [shapes[name] for name in kernel.producers if shapes.get(name)]
    logits = max(read, key=math.prod, default=())
    return kernel.elements / max(logits[1:], default=1)


def _sides(inner: int, columns: int) -> float:
    """Two sides of a square with as many values as the weight has."""
    return 2 * math.sqrt(inner * columns)
