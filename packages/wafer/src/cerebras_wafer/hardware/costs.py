"""The cost model of weight streaming: seconds of layers and steps on a whole fabric.

Multiply-adds run at effective rates, constants that were fitted to published training rates (see
`calibration.py`). Cycles an element are those of published pipelined compile reports (release 1.6), in cycles of
one PE, and streams run at the rate of the system's link: neither is fitted.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cerebras_contract.plans import Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.hardware.work import WorkClass
from cerebras_wafer.hardware.workload import LayerWork, Work, Workload

PE_CYCLES_PER_ELEMENT: dict[WorkClass, float] = {
    WorkClass.ELEMENTWISE: 1.8,  # residual add
    WorkClass.ACTIVATION: 95.0,  # GELU: 89-99 forward, 106 backward
    WorkClass.NORM: 21.0,  # LayerNorm: 13-29 forward, 17-31 backward
    WorkClass.SOFTMAX: 55.0,  # dominated by exp
    WorkClass.SCORE: 55.0,  # the softmax inside an attention core
    WorkClass.LOSS: 130.0,  # softmax cross-entropy: 110-150 in all
    WorkClass.DROPOUT: 53.0,
    WorkClass.POOLING: 1.8,  # not in the reports; taken as an elementwise operation
    WorkClass.REDUCTION: 1.8,  # likewise
    WorkClass.EMBEDDING: 1.8,  # likewise
}
EVALUATION_OVERHEAD_SHARE = 1 / 3  # of the fixed times, when only forward runs: one pass over the weights of three
TREE_HOP_SECONDS = 10e-6  # of a level of the broadcast and reduce tree; an assumption, nothing is published
ACTIVATION_SHARE_OF_SRAM = 0.8  # the rest holds code, buffers in flight and weights on their way through


@dataclass(frozen=True)
class Constants:
    """Fitted constants of one system, for 16-bit values.

    `exposed_share` is the part of the shorter of computing and streaming that the longer one does not hide.
    `layer_seconds` is the fixed time of a layer and micro-batch, `step_seconds` that of a step.
    `input_samples_per_second` is what the hosts that feed one system deliver.
    """

    multiply_adds_per_cycle: float
    attention_multiply_adds_per_cycle: float
    exposed_share: float
    layer_seconds: float
    step_seconds: float
    input_samples_per_second: float


@dataclass(frozen=True)
class Machine:
    """A system as the cost model sees it. `value_bytes` is the width of weights, gradients and activations."""

    system: SystemSpec
    constants: Constants
    value_bytes: int = 2
    num_csx: int = 1

    @property
    def room_bytes(self) -> float:
        """SRAM for activations."""
        return ACTIVATION_SHARE_OF_SRAM * self.system.sram_bytes

    def streaming_seconds(self, count_bytes: float) -> float:
        """Seconds that pass while bytes are streamed to or from the wafer."""
        return count_bytes / self.system.off_wafer_bytes_per_second

    def compute_seconds(self, work: Work) -> float:
        """Seconds in which the whole fabric does this work."""
        pe_cycles = (
            work.multiply_adds / self.constants.multiply_adds_per_cycle
            + work.attention_multiply_adds / self.constants.attention_multiply_adds_per_cycle
            + work.element_cycles
        )
        return pe_cycles / self.system.pe_cycles_per_second

    @property
    def layer_overhead_seconds(self) -> float:
        """Fixed time of a layer: its own, and the way of weights down and gradients up the tree of systems."""
        return self.constants.layer_seconds + 2 * math.ceil(math.log2(self.num_csx)) * TREE_HOP_SECONDS


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer and micro-batch. `spill` passes once in forward (out) and once in backward (in)."""

    forward: float
    backward: float
    weights_in: float
    gradients_out: float
    spill: float
    overhead: float
    forward_total: float
    backward_total: float

    @property
    def total(self) -> float:
        return self.forward_total + self.backward_total + self.overhead


@dataclass(frozen=True)
class Residency:
    """Bytes of activations of one micro-batch: those kept between layers, the most that a layer holds beside them
    while it runs, and the room for both."""

    kept_bytes: float
    working_bytes: float
    room_bytes: float

    @property
    def fits(self) -> bool:
        """Whether every layer can run. What is kept between layers may be spilled."""
        return self.working_bytes <= self.room_bytes

    @property
    def spilled_bytes(self) -> float:
        return min(self.kept_bytes, max(0.0, self.kept_bytes + self.working_bytes - self.room_bytes))

    @property
    def spilled_share(self) -> float:
        return self.spilled_bytes / self.kept_bytes if self.kept_bytes else 0.0


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step on each system: its layers and fixed time, and waiting for the input."""

    layers: float
    overhead: float
    input_wait: float

    @property
    def total(self) -> float:
        return self.layers + self.overhead + self.input_wait


def residency(workload: Workload, samples: int, machine: Machine) -> Residency:
    """Where the activations of a micro-batch are.

    A layer keeps what it reads, and makes the rest of what its backward needs again when it is its turn; the time
    of that is in the fitted rates. Keeping everything would need ten times the SRAM at published micro-batches.
    """
    working = (max(layer.forward_bytes, layer.backward_bytes) for layer in workload if not layer.sliced)
    return Residency(
        kept_bytes=samples * sum(layer.count * layer.boundary_bytes for layer in workload),
        working_bytes=samples * max(working, default=0.0),
        room_bytes=machine.room_bytes,
    )


def element_cycles(element_work: Iterable[tuple[WorkClass, float]]) -> float:
    """PE-cycles of elementwise work."""
    return sum(elements * PE_CYCLES_PER_ELEMENT[work] for work, elements in element_work)


def layer_time(layer: LayerWork, samples: int, spilled_share: float, machine: Machine) -> LayerTime:
    """One layer on a micro-batch of `samples`.

    Forward takes the longer of computing and streaming the weights in, and the exposed share of the shorter;
    backward likewise, with gradients out. Spilled activations fill what is left of the link: nothing waits for
    them until the link is full.
    """
    forward = machine.compute_seconds(layer.forward.of(samples))
    backward = machine.compute_seconds(layer.backward.of(samples))
    weights_in = machine.streaming_seconds(machine.value_bytes * layer.weights)
    gradients_out = machine.streaming_seconds(machine.value_bytes * layer.trained)
    spill = machine.streaming_seconds(spilled_share * samples * layer.boundary_bytes)
    return LayerTime(
        forward=forward,
        backward=backward,
        weights_in=weights_in,
        gradients_out=gradients_out,
        spill=spill,
        overhead=machine.layer_overhead_seconds,
        forward_total=_overlapped(forward, weights_in, spill, machine),
        backward_total=_overlapped(backward, weights_in + gradients_out, spill, machine),
    )


def _overlapped(compute: float, stream: float, spill: float, machine: Machine) -> float:
    exposed = machine.constants.exposed_share * min(compute, stream)
    return max(max(compute, stream) + exposed, stream + spill)


def step_time(workload: Workload, batch: int, micro_batch: int, machine: Machine) -> StepTime:
    """A training step on `batch` samples of each system, in micro-batches that all pay every layer."""
    share = residency(workload, micro_batch, machine).spilled_share
    layers = sum(layer.count * layer_time(layer, micro_batch, share, machine).total for layer in workload)
    return _step(batch // micro_batch * layers, machine.constants.step_seconds, batch, machine)


def evaluation_time(workload: Workload, batch: int, micro_batch: int, machine: Machine) -> StepTime:
    """Forward alone: nothing is kept for backward, so nothing is spilled."""
    layers = 0.0
    for layer in workload:
        time = layer_time(layer, micro_batch, 0.0, machine)
        layers += layer.count * (time.forward_total + EVALUATION_OVERHEAD_SHARE * time.overhead)
    overhead = EVALUATION_OVERHEAD_SHARE * machine.constants.step_seconds
    return _step(batch // micro_batch * layers, overhead, batch, machine)


def _step(layers: float, overhead: float, batch: int, machine: Machine) -> StepTime:
    input_seconds = batch / machine.constants.input_samples_per_second
    return StepTime(layers, overhead, max(0.0, input_seconds - layers - overhead))


def divisors(batch: int) -> list[int]:
    """Micro-batches of equal size that a batch can be cut into, the largest first."""
    small = [number for number in range(1, math.isqrt(batch) + 1) if batch % number == 0]
    return sorted({*small, *(batch // number for number in small)}, reverse=True)


def feasible_micro_batches(workload: Workload, batch: int, machine: Machine) -> list[int]:
    """Divisors of the batch on which every layer can run; where there is none, a single sample, in slices."""
    return [number for number in divisors(batch) if residency(workload, number, machine).fits] or [1]


def step_seconds_by_micro_batch(
    workload: Workload, batch: int, micro_batches: Iterable[int], machine: Machine
) -> dict[int, float]:
    """What a step takes with each micro-batch, in their order."""
    return {number: step_time(workload, batch, number, machine).total for number in micro_batches}


def fastest(seconds: Mapping[int, float]) -> int:
    """The micro-batch of the shortest step, the first of equals."""
    return min(seconds, key=lambda number: seconds[number])


def best_micro_batch(workload: Workload, batch: int, machine: Machine) -> int:
    """The fastest of the feasible ones, the largest of equals."""
    feasible = feasible_micro_batches(workload, batch, machine)
    return fastest(step_seconds_by_micro_batch(workload, batch, feasible, machine))


def peak_multiply_adds_per_second(system: SystemSpec, half_precision: bool) -> float:
    """Dense peak of the usable fabric at the modelled clock."""
    return system.pe_cycles_per_second * system.multiply_adds_per_cycle(half_precision)


def utilization(plan: Plan, system: SystemSpec, half_precision: bool) -> float:
    """The dense peak's fraction that a step of one system reaches, all its waiting included."""
    multiply_adds = plan.micro_batches_per_step * sum(kernel.multiply_adds for kernel in plan.kernels)
    return multiply_adds / plan.step_seconds / peak_multiply_adds_per_second(system, half_precision)
