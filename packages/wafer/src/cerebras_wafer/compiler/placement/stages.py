"""Stages: the parts of a model that get a rectangle of PEs each, and what flows between them.

A stage is a module's kernels of real work, forward and backward together, as in real pipelined compile reports.
Light kernels (elementwise, layout, reductions) run in the stage that makes what they read. The loss is a stage.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from cerebras_contract.plans import Phase
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.ir.kernels import HEAVY_KINDS, Kernel, KernelGraph, KernelKind, Weight
from cerebras_wafer.compiler.placement.constants import PipelinedConstants
from cerebras_wafer.compiler.placement.work import floor_cycles, lookups_of, serial_cycles, stage_pe_cycles

_REAL_WORK = HEAVY_KINDS | {KernelKind.NORM, KernelKind.EMBEDDING}
LOSS_STAGE = "loss"


@dataclass(frozen=True)
class Stage:
    """One rectangle to be. Work is in PE-cycles a sample, shared by the PEs; `serial_cycles` come on top of it, and
    `floor_cycles` are the fewest cycles a sample, both however many PEs there are.

    `resident_bytes` stay (weights, optimizer state, gradients); `stash_bytes` are kept for each sample between
    its forward and its backward. `kernels` gives each kernel's PE-cycles a sample.
    """

    name: str
    forward_pe_cycles: float
    backward_pe_cycles: float
    resident_bytes: float
    stash_bytes: float
    serial_cycles: float = 0.0
    floor_cycles: float = 0.0
    kernels: tuple[tuple[str, float], ...] = ()

    @property
    def pe_cycles(self) -> float:
        return self.forward_pe_cycles + self.backward_pe_cycles

    def cycles(self, processing_elements: float) -> float:
        """Cycles of one sample on so many PEs, forward and backward."""
        return max(self.pe_cycles / processing_elements + self.serial_cycles, self.floor_cycles)

    def forward_cycles(self, processing_elements: float) -> float:
        """Cycles of one sample on so many PEs, where only forward runs."""
        return self.forward_pe_cycles / processing_elements + self.serial_cycles / 3

    @property
    def least_cycles(self) -> float:
        """Cycles of one sample on any number of PEs."""
        return max(self.serial_cycles, self.floor_cycles)


@dataclass(frozen=True)
class Edge:
    """Activations that one stage sends to another (by position), bytes a sample; their gradients come back."""

    source: int
    target: int
    bytes_per_sample: float


@dataclass(frozen=True)
class StageGraph:
    """Stages in the order in which forward meets them, and the edges between them."""

    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]


def stage_graph(graph: KernelGraph, system: SystemSpec, constants: PipelinedConstants) -> StageGraph:
    """The stages of a kernel graph, with the work of one sample each."""
    members = _members(graph)
    number_of = {kernel.name: number for number, (_, kernels) in enumerate(members) for kernel in kernels}
    shapes = {kernel.name: kernel.shape for kernel in graph.kernels}
    lookups = lookups_of(graph)
    resident = resident_bytes(graph, [kernels for _, kernels in members], constants)
    stages = []
    for (name, kernels), held in zip(members, resident, strict=True):
        cycles = stage_pe_cycles(kernels, system, graph.compute_format.is_half, constants)
        per_sample = {kernel.name: cycles[kernel.name] / graph.batch_size for kernel in kernels}
        forward = sum(per_sample[kernel.name] for kernel in kernels if kernel.phase == Phase.FORWARD)
        stages.append(
            Stage(
                name=name,
                forward_pe_cycles=forward,
                backward_pe_cycles=sum(per_sample.values()) - forward,
                resident_bytes=held,
                stash_bytes=sum(kernel.saved_bytes for kernel in kernels) / graph.batch_size,
                serial_cycles=serial_cycles(kernels, lookups, system, constants) / graph.batch_size,
                floor_cycles=floor_cycles(kernels, shapes, constants) / graph.batch_size,
                kernels=tuple(per_sample.items()),
            )
        )
    return StageGraph(tuple(stages), _edges(graph, number_of))


def _members(graph: KernelGraph) -> list[tuple[str, list[Kernel]]]:
    """Kernels of each stage, and the stage's name; updates are in none: they run where the weights are."""
    names, number_of_module = _stages_of_modules(graph)
    loss = len(names)
    stage_of: dict[str, int] = {}
    found: list[list[Kernel]] = [[] for _ in range(loss + 1)]
    for kernel in graph.kernels:
        if kernel.phase == Phase.UPDATE:
            continue
        own = number_of_module.get(kernel.module) if kernel.kind in _REAL_WORK else None
        if kernel.phase == Phase.LOSS:
            own = loss
        stage_of[kernel.name] = number = _stage_of_producer(kernel, stage_of, loss) if own is None else own
        found[number].append(kernel)
    return list(zip([*names, LOSS_STAGE], found, strict=True))


def _stages_of_modules(graph: KernelGraph) -> tuple[list[str], dict[str, int]]:
    """Names of the stages but the loss, in the order of forward, and the stage of each module of real work."""
    names: list[str] = []
    taken = Counter([LOSS_STAGE])
    number_of_module: dict[str, int] = {}
    for kernel in graph.of(Phase.FORWARD):
        if kernel.kind in _REAL_WORK and kernel.module not in number_of_module:
            number_of_module[kernel.module] = len(names)
            plain = kernel.module or "model"
            named = f"{plain}.attention" if kernel.kind == KernelKind.ATTENTION else plain
            taken[named] += 1
            names.append(f"{named}#{taken[named]}" if taken[named] > 1 else named)
    return names or ["model"], number_of_module


def _stage_of_producer(kernel: Kernel, stage_of: dict[str, int], loss: int) -> int:
    """The latest stage that a light kernel reads from; one of backward goes where forward left its operands."""
    producers = [name for name in kernel.producers if stage_of.get(name) is not None]
    if kernel.phase == Phase.FORWARD:
        return max((stage_of[name] for name in producers), default=0)
    kept = [name for name in producers if name.startswith(Phase.FORWARD)]
    last = (kept or producers)[-1:]
    return min(stage_of[last[0]], loss - 1) if last else 0


def _edges(graph: KernelGraph, number_of: dict[str, int]) -> tuple[Edge, ...]:
    """What forward and the loss read across stages. A result sent to one stage is sent once."""
    sizes = {kernel.name: kernel.output_bytes / graph.batch_size for kernel in graph.kernels}
    flows: dict[tuple[int, int], set[str]] = {}
    for kernel in (*graph.of(Phase.FORWARD), *graph.of(Phase.LOSS)):
        for name in kernel.producers:
            source, target = number_of[name], number_of[kernel.name]
            if source != target:
                flows.setdefault((source, target), set()).add(name)
    return tuple(
        Edge(source, target, sum(sizes[name] for name in sorted(names)))
        for (source, target), names in sorted(flows.items())
    )


def resident_bytes(graph: KernelGraph, members: Iterable[list[Kernel]], constants: PipelinedConstants) -> list[float]:
    """Bytes of weights, optimizer state and gradients that each stage holds.

    A weight that several stages read lives where most is multiplied with it; the others hold a copy to compute
    with and a gradient to send there. Where a weight is multiplied, it takes `resident_factor` times its bytes.
    """
    width = graph.value_bytes
    use: dict[str, dict[int, int]] = {}
    held: list[float] = []
    for number, kernels in enumerate(members):
        held.append(0.0)
        for kernel in kernels:
            for name in kernel.parameters:
                readers = use.setdefault(name, {})
                readers[number] = readers.get(number, 0) + kernel.multiply_adds
    for weight in graph.weights:
        readers = use.get(weight.name, {})
        home = max(readers, key=lambda number: readers[number], default=0)
        for number, multiply_adds in readers.items():
            size = weight_bytes(weight, width) if number == home else _copy_bytes(weight, width)
            held[number] += size * (constants.resident_factor if multiply_adds else 1.0)
    return held


def weight_bytes(weight: Weight, width: int) -> int:
    """Bytes of a weight where it is updated: 16 an element with Adam in 16 bits.

    The weight and its gradient in the compute type of `width` bytes, a master copy in float32 where that type is
    narrower, and the optimizer's state in float32.
    """
    elements = math.prod(weight.shape)
    if not weight.trained:
        return width * elements
    master = 4 if width < 4 else 0
    return (2 * width + master) * elements + 4 * weight.state_elements


def _copy_bytes(weight: Weight, width: int) -> int:
    return width * math.prod(weight.shape) * (2 if weight.trained else 1)
