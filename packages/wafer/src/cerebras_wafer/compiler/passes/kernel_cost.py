"""The cost of each kernel in weight streaming, where it has the whole fabric for itself."""

import math
from functools import cached_property

from cerebras_contract.plans import Bound, KernelPlan, Phase
from cerebras_wafer.compiler.ir.kernels import HEAVY_KINDS, Kernel, KernelGraph, KernelKind
from cerebras_wafer.compiler.passes.layers import Layer, modules_with_weights, work_of
from cerebras_wafer.hardware.collectives import best_reduce_cycles, broadcast_2d_cycles
from cerebras_wafer.hardware.costs import Machine, peak_multiply_adds_per_second
from cerebras_wafer.hardware.workload import Work

WORD_BYTES = 4  # a link carries a 32-bit word a cycle
SUM_BYTES = 8  # of a row that is normalised: its sum and its sum of squares
_REDUCING = frozenset({KernelKind.NORM, KernelKind.SOFTMAX, KernelKind.REDUCTION, KernelKind.LOSS})


class KernelCosts:
    """Costs of the kernels of a graph for one micro-batch of one system."""

    def __init__(self, graph: KernelGraph, micro_batch: int, machine: Machine) -> None:
        self._graph, self._machine = graph, machine
        self._share = micro_batch / graph.batch_size
        self._modules = modules_with_weights(graph)
        self._by_name = {kernel.name: kernel for kernel in graph.kernels}
        self._elements = {weight.name: math.prod(weight.shape) for weight in graph.weights}

    def plans(self, layers: list[Layer]) -> list[KernelPlan]:
        """Every kernel of the graph, in its order; the update belongs to no layer."""
        layer_of = {kernel.name: layer.name for layer in layers for kernel in layer.kernels}
        return [self._plan(kernel, layer_of.get(kernel.name, "")) for kernel in self._graph.kernels]

    def _plan(self, kernel: Kernel, layer: str) -> KernelPlan:
        if kernel.phase == Phase.UPDATE:
            return self._written(kernel, layer, 0, 0, 0, Bound.WEIGHT_IO)
        cycles = self._compute_cycles(kernel)
        streamed = self._weight_bytes(kernel) + self._gradient_bytes.get(kernel.name, 0)
        times = {
            Bound.COMPUTE: cycles,
            Bound.FABRIC: self._fabric_cycles(kernel),
            Bound.WEIGHT_IO: self._machine.streaming_seconds(streamed) * self._machine.system.clock_hz,
        }
        bound = max(times, key=lambda name: times[name])
        return self._written(kernel, layer, cycles, self._fabric_bytes(kernel), streamed, bound)

    def _written(
        self, kernel: Kernel, layer: str, cycles: int, fabric_bytes: int, off_wafer_bytes: int, bound: Bound
    ) -> KernelPlan:
        share = self._share_of(kernel)
        multiply_adds = round(kernel.multiply_adds * share)
        return KernelPlan(
            name=kernel.name,
            kind=kernel.kind,
            phase=kernel.phase,
            module=kernel.module,
            layer=layer,
            source=kernel.source,
            operations=list(kernel.operations),
            multiply_adds=multiply_adds,
            elements=round(kernel.elements * share),
            weight_bytes=self._weight_bytes(kernel),
            output_bytes=round(kernel.output_bytes * share),
            cycles=cycles,
            utilization=multiply_adds / (cycles * self._peak) if cycles else 0.0,
            processing_elements=self._machine.system.processing_elements,
            sram_bytes_per_pe=self._sram_bytes_per_pe(kernel),
            fabric_bytes=fabric_bytes,
            off_wafer_bytes=off_wafer_bytes,
            bound=bound,
        )

    @cached_property
    def _peak(self) -> float:
        """Multiply-adds a cycle of the whole fabric."""
        half = self._machine.value_bytes == 2
        return peak_multiply_adds_per_second(self._machine.system, half) / self._machine.system.clock_hz

    @cached_property
    def _gradient_bytes(self) -> dict[str, int]:
        """Bytes of gradients out, by the kernel of backward that makes them: the one of the module, and of the
        kind, whose forward read the weight."""
        made_by: dict[tuple[str, KernelKind], str] = {}
        for kernel in self._graph.of(Phase.BACKWARD):
            made_by.setdefault((kernel.module, kernel.kind), kernel.name)
        trained = {weight.name for weight in self._graph.weights if weight.trained}
        found: dict[str, int] = {}
        for kernel in self._graph.of(Phase.FORWARD):
            maker = made_by.get((kernel.module, kernel.kind))
            if maker:
                own = sum(self._elements[name] for name in kernel.parameters if name in trained)
                found[maker] = found.get(maker, 0) + self._machine.value_bytes * own
        return found

    def _share_of(self, kernel: Kernel) -> float:
        return self._share if kernel.grows_with_batch else 1.0

    def _compute_cycles(self, kernel: Kernel) -> int:
        work: Work = work_of(kernel, self._modules).scaled(self._share_of(kernel))
        return math.ceil(self._machine.compute_seconds(work) * self._machine.system.clock_hz)

    def _weight_bytes(self, kernel: Kernel) -> int:
        return self._machine.value_bytes * sum(self._elements[name] for name in kernel.parameters)

    def _read_bytes(self, kernel: Kernel) -> float:
        producers = (self._by_name[name] for name in kernel.producers if name in self._by_name)
        return sum(producer.output_bytes * self._share_of(producer) for producer in producers)

    def _sram_bytes_per_pe(self, kernel: Kernel) -> int:
        """Operands and result, spread over the fabric; weights pass through and are not held."""
        if kernel.phase == Phase.UPDATE:
            return 0
        held = self._read_bytes(kernel) + kernel.output_bytes * self._share_of(kernel)
        return math.ceil(min(held, self._machine.room_bytes) / self._machine.system.processing_elements)

    def _fabric_bytes(self, kernel: Kernel) -> int:
        """Bytes that enter the fabric's links: operands that are broadcast, and results that are reduced.

        A product broadcasts its weights, or, without weights, the smaller half of what it reads, and reduces its
        result; norms and the like reduce two numbers a row; a layout change and an embedding move their result;
        elementwise work moves nothing.
        """
        result = kernel.output_bytes * self._share_of(kernel)
        if kernel.kind in HEAVY_KINDS:
            return round((self._weight_bytes(kernel) or self._read_bytes(kernel) / 2) + result)
        if kernel.kind in _REDUCING:
            elements = kernel.elements * self._share_of(kernel)
            return round(SUM_BYTES * elements / max(kernel.shape[-1:] or (1,)))
        return round(result) if kernel.kind in (KernelKind.LAYOUT, KernelKind.EMBEDDING) else 0

    def _fabric_cycles(self, kernel: Kernel) -> int:
        """Cycles of the broadcast and the reduction of a product on an empty fabric: each row of PEs reduces its
        share of the result. Where these exceed its compute the kernel is bound by the fabric; they are not added,
        since a layer's fixed time was fitted with them inside."""
        if kernel.kind not in HEAVY_KINDS:
            return 0
        system = self._machine.system
        result = kernel.output_bytes * self._share_of(kernel) / WORD_BYTES
        weights = self._weight_bytes(kernel) / WORD_BYTES / system.fabric_columns
        reduce = best_reduce_cycles(math.ceil(result / system.processing_elements), system.fabric_columns)
        return reduce + broadcast_2d_cycles(math.ceil(weights), system.fabric_columns, system.fabric_rows)
