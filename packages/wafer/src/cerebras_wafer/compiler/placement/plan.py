"""The plan of a placement: regions, routes, and every kernel with the cycles that it has in its region."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cerebras_contract.plans import (
    Bound,
    KernelPlan,
    MemoryEstimate,
    Mode,
    Phase,
    Plan,
    RegionPlan,
    RoutePlan,
    Trust,
)
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.ir.kernels import HEAVY_KINDS, Kernel, KernelGraph, KernelKind
from cerebras_wafer.compiler.placement.check import Placement
from cerebras_wafer.compiler.placement.constants import PipelinedConstants
from cerebras_wafer.compiler.placement.inputs import input_bytes_by_kernel
from cerebras_wafer.compiler.placement.size import Sizer

CALIBRATED_SYSTEM = "cs-2"
FAMILY = "transformers, pipelined"


@dataclass(frozen=True)
class Placed:
    """A checked placement, the rate of its pipeline in samples a second, and what limits that.

    `outer_rate` is the limit of input and fabric alone, which hold in evaluation too.
    """

    placement: Placement
    sizer: Sizer
    rate: float
    outer_rate: float
    bound: Bound

    @cached_property
    def areas(self) -> list[int]:
        return [rectangle.area for rectangle in self.placement.rectangles]


def pipelined_plan(graph: KernelGraph, placed: Placed, system: SystemSpec, mode_reason: str) -> Plan:
    """The plan of one training step. Samples go through one by one: the micro-batch is one sample.

    A step takes the way of the first sample and the rate's time for each of the others; then the pipeline is empty,
    and weights are updated where they are, in the shadow of that.
    """
    placement, areas = placed.placement, placed.areas
    kernels = _kernels(graph, placed, system)
    inside: dict[str, list[KernelPlan]] = defaultdict(list)
    for kernel in kernels:
        if kernel.phase != Phase.UPDATE:
            inside[kernel.layer].append(kernel)
    regions = [
        _region(number, placed, inside[stage.name], _peak(graph, system) * system.clock_hz)
        for number, stage in enumerate(placement.graph.stages)
    ]
    return Plan(
        system=system.name,
        clock_hz=system.clock_hz,
        fabric_columns=system.fabric_columns,
        fabric_rows=system.fabric_rows,
        mode=Mode.PIPELINED,
        mode_reason=mode_reason,
        num_csx=1,
        batch_size=graph.batch_size,
        micro_batch=1,
        micro_batches_per_step=graph.batch_size,
        kernels=kernels,
        layers=[],
        regions=regions,
        routes=_routes(placement),
        candidates=[],
        fill=sum(areas) / system.processing_elements,
        step_cycles=_step_cycles(graph.batch_size, placed, placed.rate, backward=True),
        evaluation_cycles=_step_cycles(graph.batch_size, placed, _evaluation_rate(placed), backward=False),
        bound=placed.bound,
        memory=_memory(graph, placed, system),
        warnings=[],
        trust=trust(graph, system, placed.sizer.constants),
    )


def trust(graph: KernelGraph, system: SystemSpec, constants: PipelinedConstants) -> Trust:
    """Calibrated are transformers in 16 bits on a CS-2; anything else has the same constants and no measurement."""
    kinds = {kernel.kind for kernel in graph.of(Phase.FORWARD)}
    transformer = KernelKind.ATTENTION in kinds and KernelKind.CONV2D not in kinds
    outside = [
        reason
        for reason, holds in (
            ("no transformer", not transformer),
            (f"on {system.name}", system.name != CALIBRATED_SYSTEM),
            ("in float32", not graph.compute_format.is_half),
        )
        if holds
    ]
    if outside:
        return Trust(
            calibrated=False,
            family="",
            calibration_set=constants.calibration_set,
            statement=f"Uncalibrated: {', '.join(outside)}; the constants are those of {constants.calibration_set}.",
        )
    return Trust(
        calibrated=True,
        family=FAMILY,
        calibration_set=constants.calibration_set,
        mean_error=constants.mean_error,
        worst_error=constants.worst_error,
        statement=(
            f"Fitted to {constants.calibration_set}: rates that were held out are off by {constants.mean_error:.1%}"
            f" in the mean and {constants.worst_error:.1%} at worst. Those are the vendor's own estimates, said to"
            " vary by 10 to 25 % from what runs; filling and draining the pipeline was never measured."
        ),
    )


def _kernels(graph: KernelGraph, placed: Placed, system: SystemSpec) -> list[KernelPlan]:
    stages = placed.placement.graph.stages
    number_of = {name: number for number, stage in enumerate(stages) for name, _ in stage.kernels}
    cycles_of = {
        name: cycles / area * (1 + stage.serial_cycles * area / stage.pe_cycles if stage.pe_cycles else 1)
        for stage, area in zip(stages, placed.areas, strict=True)
        for name, cycles in stage.kernels
    }
    readers: dict[str, set[int]] = {}
    for kernel in graph.kernels:
        for name in kernel.producers:
            readers.setdefault(name, set()).add(number_of.get(kernel.name, -1))
    first = next((number_of[kernel.name] for kernel in graph.of(Phase.FORWARD) if kernel.parameters), 0)
    weights = {weight.name: math.prod(weight.shape) for weight in graph.weights}
    inputs = input_bytes_by_kernel(graph, graph.value_bytes)
    found = []
    for kernel in graph.kernels:
        number = number_of.get(kernel.name, first)
        leaves = bool(readers.get(kernel.name, set()) - {number})
        cycles = math.ceil(cycles_of.get(kernel.name, 0.0))
        planned = _kernel(kernel, number, cycles, leaves, weights, graph, placed, _peak(graph, system))
        found.append(planned.model_copy(update={"off_wafer_bytes": round(inputs.get(kernel.name, 0.0))}))
    return found


def _kernel(
    kernel: Kernel,
    number: int,
    cycles: int,
    leaves: bool,
    weights: Mapping[str, int],
    graph: KernelGraph,
    placed: Placed,
    peak: float,
) -> KernelPlan:
    """`leaves`: another stage reads its result. `weights` has the elements of each weight, `peak` multiply-adds of a
    PE and cycle."""
    area, width = placed.areas[number], graph.value_bytes
    updates = kernel.phase == Phase.UPDATE
    multiply_adds = kernel.multiply_adds // graph.batch_size
    output = 0 if updates else kernel.output_bytes // graph.batch_size
    return KernelPlan(
        name=kernel.name,
        kind=kernel.kind,
        phase=kernel.phase,
        module=kernel.module,
        layer=placed.placement.graph.stages[number].name,
        source=kernel.source,
        operations=list(kernel.operations),
        multiply_adds=multiply_adds,
        elements=kernel.elements // graph.batch_size,
        weight_bytes=width * sum(weights[name] for name in kernel.parameters),
        output_bytes=output,
        cycles=0 if updates else cycles,
        utilization=min(1.0, multiply_adds / (cycles * area * peak)) if cycles and kernel.kind in HEAVY_KINDS else 0.0,
        processing_elements=area,
        sram_bytes_per_pe=round(placed.placement.sram_bytes_per_pe[number]),
        fabric_bytes=output if leaves else 0,
        off_wafer_bytes=0,
        bound=_bound_of_stage(number, placed),
    )


def _bound_of_stage(number: int, placed: Placed) -> Bound:
    """Why a stage has the PEs that it has: a floor under its time, its memory, or its work."""
    stage, area = placed.placement.graph.stages[number], placed.areas[number]
    clock = placed.sizer.system.clock_hz
    if stage.least_cycles > stage.pe_cycles / area:
        return Bound.OVERHEAD
    return Bound.MEMORY if placed.rate * stage.cycles(area) < 0.9 * clock and area > 1 else Bound.COMPUTE


def _region(number: int, placed: Placed, inside: list[KernelPlan], peak_of_a_pe: float) -> RegionPlan:
    """`peak_of_a_pe` is in multiply-adds a second."""
    stage, box = placed.placement.graph.stages[number], placed.placement.rectangles[number]
    cycles = max(stage.cycles(box.area), 1.0)
    multiply_adds = sum(kernel.multiply_adds for kernel in inside)
    return RegionPlan(
        name=stage.name,
        column=box.column,
        row=box.row,
        width=box.width,
        height=box.height,
        kernels=[kernel.name for kernel in inside],
        cycles=math.ceil(cycles),
        sram_bytes_per_pe=round(placed.placement.sram_bytes_per_pe[number]),
        utilization=min(1.0, multiply_adds * placed.rate / (box.area * peak_of_a_pe)),
        samples_per_second=placed.sizer.system.clock_hz / cycles,
    )


def _routes(placement: Placement) -> list[RoutePlan]:
    names = [stage.name for stage in placement.graph.stages]
    return [
        RoutePlan(
            source=names[route.edge.source],
            target=names[route.edge.target],
            hops=route.hops,
            colour=route.colour,
            bytes_per_sample=round(route.edge.bytes_per_sample),
        )
        for route in placement.routes
    ]


def _evaluation_rate(placed: Placed) -> float:
    """Samples a second where only forward runs, on the same rectangles."""
    stages, clock = placed.placement.graph.stages, placed.sizer.system.clock_hz
    slowest = max(stage.forward_cycles(area) for stage, area in zip(stages, placed.areas, strict=True))
    return min(placed.outer_rate, clock / max(slowest, 1.0))


def _step_cycles(batch_size: int, placed: Placed, rate: float, *, backward: bool) -> int:
    first = placed.sizer.latency_seconds(placed.areas, backward=backward)
    return math.ceil((first + (batch_size - 1) / rate) * placed.sizer.system.clock_hz)


def _memory(graph: KernelGraph, placed: Placed, system: SystemSpec) -> MemoryEstimate:
    """Bytes on the wafer; a weight in 16 bits has a master copy in float32 beside it."""
    width = graph.value_bytes
    read = {name for kernel in graph.kernels for name in kernel.parameters}
    weights = [weight for weight in graph.weights if weight.name in read]
    trained = sum(math.prod(weight.shape) for weight in weights if weight.trained)
    held = placed.sizer.held_bytes(placed.rate, placed.areas)
    stages = placed.placement.graph.stages
    return MemoryEstimate(
        weights_bytes=width * sum(math.prod(weight.shape) for weight in weights) + (4 * trained if width < 4 else 0),
        optimizer_state_bytes=4 * sum(weight.state_elements for weight in weights),
        gradients_bytes=width * trained,
        activations_bytes=round(sum(held) - sum(stage.resident_bytes for stage in stages)),
        spilled_bytes=0,
        wafer_sram_bytes=system.sram_bytes,
        peak_sram_bytes_per_pe=round(max(placed.placement.sram_bytes_per_pe)),
    )


def _peak(graph: KernelGraph, system: SystemSpec) -> float:
    """Multiply-adds a cycle of one PE."""
    return system.multiply_adds_per_cycle(graph.compute_format.is_half)
