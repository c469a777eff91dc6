"""Place: the pipelined plan of a kernel graph, or the reason why it does not fit."""

import math

from cerebras_contract.plans import Bound, Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.placement.check import Placement, check
from cerebras_wafer.compiler.placement.constants import PipelinedConstants, load_constants
from cerebras_wafer.compiler.placement.floorplan import Rectangle, floorplan
from cerebras_wafer.compiler.placement.inputs import input_bytes
from cerebras_wafer.compiler.placement.plan import Placed, pipelined_plan
from cerebras_wafer.compiler.placement.routes import Route, colours_in_use, routes
from cerebras_wafer.compiler.placement.size import Sizer, Sizing
from cerebras_wafer.compiler.placement.stages import StageGraph, stage_graph
from cerebras_wafer.errors import CompileError

_GIVE_WAY = 0.985  # of the PEs, tried again where the rectangles do not fit
_TRIES = 24
_BUSY = 0.9  # of the PEs are there for the work, or the pipeline waits for memory
_ADVICE = "Use execution_mode: weight_streaming, which holds one layer at a time, or a smaller model."


def place(graph: KernelGraph, options: CompileOptions, system: SystemSpec, mode_reason: str = "") -> Plan:
    """The pipelined plan of a training step on one system.

    Raises `CompileError` where the model does not fit, with what it needs and what there is, or where more than one
    system is asked for.
    """
    if options.num_csx > 1:
        raise CompileError(
            f"pipelined mode runs on one system, and num_csx is {options.num_csx}",
            advice="Set num_csx to 1, or execution_mode to weight_streaming, which runs on any number of systems.",
        )
    constants = load_constants()
    value_bytes = graph.value_bytes
    placed = place_stages(
        stage_graph(graph, system, constants),
        system,
        constants,
        value_bytes=value_bytes,
        input_bytes=input_bytes(graph, value_bytes),
    )
    return pipelined_plan(graph, placed, system, mode_reason or "all layers fit on the wafer at once")


def place_stages(
    stages: StageGraph, system: SystemSpec, constants: PipelinedConstants, *, value_bytes: int, input_bytes: float
) -> Placed:
    """Sizes, rectangles and routes of stages, checked. `input_bytes` are those of a sample that come from the hosts."""
    sizer = Sizer(stages, system, constants)
    input_rate = system.off_wafer_bytes_per_second / input_bytes if input_bytes else math.inf
    sizing, rectangles = _sized_and_packed(sizer, input_rate)
    found = routes(stages.edges, rectangles)
    _refuse_colours(found, system)
    slowest = max((route.cycles(value_bytes, constants.link_cycles_per_element) for route in found), default=0.0)
    fabric_rate = system.clock_hz / slowest if slowest else math.inf
    rate = min(sizing.rate, fabric_rate)
    areas = [rectangle.area for rectangle in rectangles]
    held = sizer.held_bytes(rate, areas)
    reserved = system.sram_bytes_per_pe - sizer.usable_bytes_per_pe
    loads = tuple(reserved + bytes_held / area for bytes_held, area in zip(held, areas, strict=True))
    placement = Placement(stages, tuple(rectangles), loads, tuple(found))
    check(placement, system)
    return Placed(
        placement, sizer, rate, min(input_rate, fabric_rate), _bound(sizer, areas, rate, input_rate, fabric_rate)
    )


def _sized_and_packed(sizer: Sizer, input_rate: float) -> tuple[Sizing, list[Rectangle]]:
    """The fastest sizing whose rectangles fit. Where they leave too many holes, all stages get a little less."""
    system, stages = sizer.system, sizer.graph.stages
    budget = math.floor(sizer.constants.active_fraction * system.processing_elements)
    least = sum(math.ceil(size) for size in sizer.sizes(0.0, 0.0))
    if least > budget:
        raise _does_not_fit(sizer, budget, least)
    for _ in range(_TRIES):
        sizing = sizer.best(budget, input_rate)
        rectangles = floorplan(sizing.processing_elements, system.fabric_columns, system.fabric_rows)
        if rectangles is not None:
            return sizing, rectangles
        budget = min(budget - 1, math.floor(_GIVE_WAY * sizing.total))
        if budget < least:
            break
    raise CompileError(
        f"{len(stages)} stages of {least:,} PEs in all cannot be laid out as rectangles on the"
        f" {system.fabric_columns} x {system.fabric_rows} PEs of {system.name}",
        advice=_ADVICE,
    )


def _does_not_fit(sizer: Sizer, budget: int, least: int) -> CompileError:
    stages, system = sizer.graph.stages, sizer.system
    needed = sum(stage.resident_bytes + stage.stash_bytes for stage in stages)
    there = budget * sizer.usable_bytes_per_pe
    largest = sorted(stages, key=lambda stage: stage.resident_bytes + stage.stash_bytes, reverse=True)[:3]
    named = ", ".join(f"{stage.name} {_gigabytes(stage.resident_bytes + stage.stash_bytes)}" for stage in largest)
    return CompileError(
        f"the model does not fit on {system.name} in pipelined mode: with one sample under way it needs"
        f" {_gigabytes(needed)} ({least:,} PEs) for weights, optimizer state, gradients and activations, and there"
        f" are {_gigabytes(there)} ({budget:,} PEs); its largest stages: {named}",
        advice=f"{_ADVICE} A smaller batch does not help here: samples go through one by one.",
    )


def _refuse_colours(found: list[Route], system: SystemSpec) -> None:
    used = colours_in_use(found)
    if used > system.fabric_colours:
        raise CompileError(
            f"the routes between the stages need {used} colours, and a PE of {system.name} has"
            f" {system.fabric_colours}: too many results cross the same part of the fabric",
            advice="Use execution_mode: weight_streaming, or a model with fewer connections over many layers.",
        )


def _bound(sizer: Sizer, areas: list[int], rate: float, input_rate: float, fabric_rate: float) -> Bound:
    """What the pipeline waits for."""
    if rate >= fabric_rate:
        return Bound.FABRIC
    if rate >= input_rate * (1 - 1e-6):
        return Bound.INPUT
    clock, stages = sizer.system.clock_hz, sizer.graph.stages
    if rate * max(stage.least_cycles for stage in stages) >= clock * (1 - 1e-6):
        return Bound.OVERHEAD
    needed = sum(stage.pe_cycles * rate / (clock - stage.serial_cycles * rate) for stage in stages)
    return Bound.COMPUTE if needed >= _BUSY * sum(areas) else Bound.MEMORY


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
