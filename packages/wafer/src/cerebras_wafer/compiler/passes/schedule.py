"""Schedule in weight streaming: one layer at a time, its weights broadcast in and its gradients reduced out.

The form of the cost, and where its constants come from, is in hardware/costs.py. Layers of equal work are costed
once, so that the time to plan grows with depth only as the plan itself does.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cerebras_contract.plans import Bound, KernelPlan, LayerPlan, MemoryEstimate, Mode, Phase, Plan, PlanWarning
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.passes.kernel_cost import KernelCosts
from cerebras_wafer.compiler.passes.layers import Layer, layers_of, workload_of
from cerebras_wafer.compiler.passes.micro_batch import batch_per_system, choose_micro_batch
from cerebras_wafer.compiler.passes.trust import trust_of
from cerebras_wafer.hardware.calibration import constants_for
from cerebras_wafer.hardware.costs import (
    LayerTime,
    Machine,
    Residency,
    StepTime,
    evaluation_time,
    layer_time,
    residency,
    step_time,
)
from cerebras_wafer.hardware.workload import LayerWork, Workload

LAYER_EXCEEDS_WAFER = "layer_exceeds_wafer"
REASON = "one layer at a time: models of any size fit"


def machine_for(options: CompileOptions, system: SystemSpec) -> Machine:
    """The system as the cost model sees it, with these options."""
    compute = options.precision.compute_dtype
    constants = constants_for(system, compute.is_half)
    return Machine(system, constants, value_bytes=compute.layout.size_bytes, num_csx=options.num_csx)


def schedule(graph: KernelGraph, options: CompileOptions, system: SystemSpec) -> Plan:
    """The plan of one training step in weight streaming: micro-batch, layers, cycles, memory.

    Raises `CompileError` where the batch cannot be divided as the options say, or a wanted micro-batch not fit.
    """
    machine = machine_for(options, system)
    batch = batch_per_system(graph.batch_size, options.num_csx)
    workload = workload_of(graph)
    micro_batch, candidates = choose_micro_batch(workload, batch, options.micro_batch, machine)
    held = residency(workload, micro_batch, machine)
    step = step_time(workload, batch, micro_batch, machine)
    layers = layers_of(graph)
    kernels = KernelCosts(graph, micro_batch, machine).plans(layers)
    plans = list(_layer_plans(workload, layers, micro_batch, held, kernels, machine))
    return Plan(
        system=system.name,
        clock_hz=system.clock_hz,
        fabric_columns=system.fabric_columns,
        fabric_rows=system.fabric_rows,
        mode=Mode.WEIGHT_STREAMING,
        mode_reason=REASON,
        num_csx=options.num_csx,
        batch_size=graph.batch_size,
        micro_batch=micro_batch,
        micro_batches_per_step=batch // micro_batch,
        kernels=kernels,
        layers=plans,
        regions=[],
        routes=[],
        candidates=candidates,
        warnings=_warnings(micro_batch, held),
        fill=1.0,
        **_step_cycles(step, batch // micro_batch, plans, system),
        evaluation_cycles=_cycles(evaluation_time(workload, batch, micro_batch, machine).total, system),
        bound=_bound_of_step(step, plans),
        memory=_memory(graph, held, plans, system),
        trust=trust_of(graph, options, system),
    )


def _warnings(micro_batch: int, held: Residency) -> list[PlanWarning]:
    if held.fits:
        return []
    message = (
        f"even {micro_batch} sample does not fit: a layer holds {held.working_bytes / 1e9:.4g} GB of activations"
        f" while it runs, the wafer has room for {held.room_bytes / 1e9:.4g} GB; the time of running it in slices is"
        " not in the estimate"
    )
    return [PlanWarning(code=LAYER_EXCEEDS_WAFER, message=message)]


def _step_cycles(step: StepTime, micro_batches: int, layers: list[LayerPlan], system: SystemSpec) -> dict[str, int]:
    """A step is its micro-batches of all layers, a fixed time, and what it waits for its input."""
    busy = micro_batches * sum(layer.total_cycles for layer in layers)
    overhead, waiting = _cycles(step.overhead, system), _cycles(step.input_wait, system)
    return {
        "step_cycles": busy + overhead + waiting,
        "step_overhead_cycles": overhead,
        "input_wait_cycles": waiting,
    }


def _layer_plans(
    workload: Workload,
    layers: Sequence[Layer],
    micro_batch: int,
    held: Residency,
    kernels: list[KernelPlan],
    machine: Machine,
) -> Iterator[LayerPlan]:
    """One plan a layer; those of equal work share their times and are `planned_as` the first of them."""
    cycles: Counter[tuple[str, Phase]] = Counter()
    for kernel in kernels:
        cycles[kernel.layer, kernel.phase] += kernel.cycles
    first: dict[LayerWork, tuple[str, LayerTime]] = {}
    kept = 0.0
    for layer, with_weights in zip(workload, layers, strict=True):
        signature = replace(layer, name="")
        if signature not in first:
            first[signature] = (layer.name, layer_time(layer, micro_batch, held.spilled_share, machine))
        planned_as, time = first[signature]
        kept += micro_batch * layer.boundary_bytes * (1 - held.spilled_share)
        computing = (
            cycles[planned_as, Phase.FORWARD],
            cycles[planned_as, Phase.LOSS] + cycles[planned_as, Phase.BACKWARD],
        )
        plan = _layer_plan(layer, planned_as, time, computing, _Held(kept, micro_batch, held), machine)
        yield plan.model_copy(update={"weights": list(with_weights.weights)})


@dataclass(frozen=True)
class _Held:
    """Activations on the wafer when a layer runs: kept by it and those before it, and its own."""

    kept_bytes: float
    micro_batch: int
    residency: Residency

    def bytes_per_pe(self, working_bytes: float, system: SystemSpec) -> int:
        """With what a layer holds while it runs; a sliced layer takes the room that there is."""
        total = min(self.kept_bytes + self.micro_batch * working_bytes, self.residency.room_bytes)
        return math.ceil(total / system.processing_elements)


def _layer_plan(
    layer: LayerWork, planned_as: str, time: LayerTime, computing: tuple[int, int], held: _Held, machine: Machine
) -> LayerPlan:
    system = machine.system
    spilled = held.residency.spilled_share * held.micro_batch * layer.boundary_bytes
    return LayerPlan(
        name=layer.name,
        planned_as=planned_as,
        weight_bytes=machine.value_bytes * layer.weights,
        gradient_bytes=machine.value_bytes * layer.trained,
        forward_cycles=computing[0],
        backward_cycles=computing[1],
        weights_in_cycles=_cycles(time.weights_in, system),
        gradients_out_cycles=_cycles(time.gradients_out, system),
        overhead_cycles=_cycles(time.overhead, system),
        total_cycles=_cycles(time.total, system),
        forward_sram_bytes_per_pe=held.bytes_per_pe(layer.forward_bytes, system),
        backward_sram_bytes_per_pe=held.bytes_per_pe(layer.backward_bytes, system),
        spilled_bytes=round(spilled),
        bound=_bound_of_layer(time),
    )


def _bound_of_layer(time: LayerTime) -> Bound:
    """What takes the most of the layer's time; spilled activations are traffic of the wafer's memory."""
    streaming, spilling = 2 * time.weights_in + time.gradients_out, 2 * time.spill
    link_is_full = time.forward_total + time.backward_total <= 1.001 * (streaming + spilling)
    parts = {
        Bound.COMPUTE: time.forward + time.backward,
        Bound.WEIGHT_IO: streaming,
        Bound.MEMORY: spilling if link_is_full else 0.0,
        Bound.OVERHEAD: time.overhead,
    }
    return max(parts, key=lambda bound: parts[bound])


def _bound_of_step(step: StepTime, layers: list[LayerPlan]) -> Bound:
    """The bound of the layers that take the longest together, or the input where it takes longer than they hide."""
    if step.input_wait > 0:
        return Bound.INPUT
    shares: Counter[Bound] = Counter()
    for layer in layers:
        shares[layer.bound] += layer.total_cycles
    return shares.most_common(1)[0][0]


def _cycles(seconds: float, system: SystemSpec) -> int:
    return math.ceil(seconds * system.clock_hz - 1e-6)


def _memory(graph: KernelGraph, held: Residency, layers: list[LayerPlan], system: SystemSpec) -> MemoryEstimate:
    peaks = [max(layer.forward_sram_bytes_per_pe, layer.backward_sram_bytes_per_pe) for layer in layers]
    return MemoryEstimate(
        weights_bytes=4 * sum(math.prod(weight.shape) for weight in graph.own_weights),
        optimizer_state_bytes=4 * sum(weight.state_elements for weight in graph.own_weights),
        gradients_bytes=4 * sum(math.prod(weight.shape) for weight in graph.own_weights if weight.trained),
        activations_bytes=round(held.kept_bytes + held.working_bytes),
        spilled_bytes=round(held.spilled_bytes),
        wafer_sram_bytes=system.sram_bytes,
        peak_sram_bytes_per_pe=max(peaks, default=0),
    )
