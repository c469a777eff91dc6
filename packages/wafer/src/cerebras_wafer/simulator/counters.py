"""Counters of a simulated system: what a training step does there, by the plan."""

from collections import Counter
from dataclasses import dataclass

from cerebras_contract.plans import Bound, LayerPlan, Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.hardware.costs import utilization


@dataclass(frozen=True)
class StepCounters:
    """One training step on one system. Cycles in which the fabric computes and cycles in which it waits, by what
    it waits for, add up to `cycles`; `utilization` is a fraction of the dense peak."""

    cycles: int
    compute_cycles: int
    stalled_cycles: dict[Bound, int]
    utilization: float
    peak_sram_bytes_per_pe: int
    fabric_bytes: int
    off_wafer_bytes: int


def step_counters(plan: Plan, system: SystemSpec, *, half_precision: bool) -> StepCounters:
    """The counters of a plan's step. The plan is of this system."""
    times = plan.micro_batches_per_step
    stalled: Counter[Bound] = Counter()
    for layer in plan.layers:
        stalled.update({bound: times * cycles for bound, cycles in _stalls(layer).items()})
    stalled.update({Bound.OVERHEAD: plan.step_overhead_cycles, Bound.INPUT: plan.input_wait_cycles})
    if plan.regions:  # the pipeline fills and drains
        slowest = max(region.cycles for region in plan.regions)
        stalled[Bound.OVERHEAD] += max(0, plan.step_cycles - sum(stalled.values()) - slowest * plan.batch_size)
    return StepCounters(
        cycles=plan.step_cycles,
        compute_cycles=plan.step_cycles - sum(stalled.values()),
        stalled_cycles={bound: cycles for bound, cycles in stalled.items() if cycles},
        utilization=utilization(plan, system, half_precision),
        peak_sram_bytes_per_pe=plan.memory.peak_sram_bytes_per_pe,
        fabric_bytes=times * sum(kernel.fabric_bytes for kernel in plan.kernels),
        off_wafer_bytes=times * sum(kernel.off_wafer_bytes for kernel in plan.kernels),
    )


def _stalls(layer: LayerPlan) -> dict[Bound, int]:
    """Cycles of a micro-batch in which the layer does not compute: beside the fixed time, streaming goes on."""
    computing = layer.forward_cycles + layer.backward_cycles
    streaming = max(0, layer.total_cycles - layer.overhead_cycles - computing)
    waits_for = Bound.MEMORY if layer.bound == Bound.MEMORY else Bound.WEIGHT_IO
    return {waits_for: streaming, Bound.OVERHEAD: layer.overhead_cycles}
