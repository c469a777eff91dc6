"""Timelines of a plan: who works when, as spans to draw."""

from dataclasses import dataclass
from enum import StrEnum

from cerebras_contract.plans import LayerPlan, Phase, Plan


class Lane(StrEnum):
    """The rows of the timeline in weight streaming."""

    WEIGHTS_IN = "weights in"
    COMPUTE = "compute"
    OVERHEAD = "overhead"
    GRADIENTS_OUT = "gradients out"


@dataclass(frozen=True)
class Span:
    """`layer` is its place in `Plan.layers`; times are cycles from the start of the micro-batch."""

    lane: Lane
    layer: int
    phase: Phase
    start_cycles: int
    end_cycles: int


def micro_batch_spans(plan: Plan) -> list[Span]:
    """One micro-batch in weight streaming: forward through the layers, then backward; it ends at their total.

    A third of a layer's overhead is drawn with forward, as in evaluation, which pays that third.
    """
    spans: list[Span] = []
    now = 0
    for index, layer in enumerate(plan.layers):
        now = _forward(spans, index, layer, now)
    for index in reversed(range(len(plan.layers))):
        now = _backward(spans, index, plan.layers[index], now)
    return [span for span in spans if span.end_cycles > span.start_cycles]


def _forward(spans: list[Span], index: int, layer: LayerPlan, now: int) -> int:
    ready = now + max(layer.forward_cycles, layer.weights_in_cycles)
    end = ready + layer.overhead_cycles // 3
    spans += [
        Span(Lane.WEIGHTS_IN, index, Phase.FORWARD, now, now + layer.weights_in_cycles),
        Span(Lane.COMPUTE, index, Phase.FORWARD, now, now + layer.forward_cycles),
        Span(Lane.OVERHEAD, index, Phase.FORWARD, ready, end),
    ]
    return end


def _backward(spans: list[Span], index: int, layer: LayerPlan, now: int) -> int:
    weights_end = now + layer.weights_in_cycles
    gradients_end = weights_end + layer.gradients_out_cycles
    ready = now + max(layer.backward_cycles, gradients_end - now)
    end = now + layer.total_cycles - max(layer.forward_cycles, layer.weights_in_cycles) - layer.overhead_cycles // 3
    spans += [
        Span(Lane.WEIGHTS_IN, index, Phase.BACKWARD, now, weights_end),
        Span(Lane.COMPUTE, index, Phase.BACKWARD, now, now + layer.backward_cycles),
        Span(Lane.GRADIENTS_OUT, index, Phase.BACKWARD, weights_end, gradients_end),
        Span(Lane.OVERHEAD, index, Phase.BACKWARD, ready, end),
    ]
    return end


@dataclass(frozen=True)
class Visit:
    """A stay of one sample in a region: `region` is its place in `Plan.regions`, times are cycles from the
    sample's entry."""

    region: int
    phase: Phase
    start_cycles: float
    end_cycles: float


def sample_visits(plan: Plan) -> list[Visit]:
    """The way of one sample through a pipelined plan, forward and back, in the order of the kernels.

    A region's cycles are divided among its kernels as the kernels' own cycles are.
    """
    places = {region.name: index for index, region in enumerate(plan.regions)}
    kernels = [kernel for kernel in plan.kernels if kernel.layer in places and kernel.phase != Phase.UPDATE]
    whole = dict.fromkeys(places, 0)
    for kernel in kernels:
        whole[kernel.layer] += kernel.cycles
    visits: list[Visit] = []
    now = 0.0
    for kernel in kernels:
        region = places[kernel.layer]
        end = now + plan.regions[region].cycles * kernel.cycles / max(whole[kernel.layer], 1)
        phase = Phase.BACKWARD if kernel.phase == Phase.BACKWARD else Phase.FORWARD
        if visits and (visits[-1].region, visits[-1].phase) == (region, phase):
            visits[-1] = Visit(region, phase, visits[-1].start_cycles, end)
        else:
            visits.append(Visit(region, phase, now, end))
        now = end
    return visits
