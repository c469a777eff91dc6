"""Timelines of a plan: who works when, as spans to draw."""

from collections.abc import Iterable, Sequence
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
    ready = now + _phase_cycles(layer, Phase.FORWARD)
    end = ready + layer.overhead_cycles // 3
    spans += [
        Span(Lane.WEIGHTS_IN, index, Phase.FORWARD, now, now + layer.weights_in_cycles),
        Span(Lane.COMPUTE, index, Phase.FORWARD, now, now + layer.forward_cycles),
        Span(Lane.OVERHEAD, index, Phase.FORWARD, ready, end),
    ]
    return end


def _backward(spans: list[Span], index: int, layer: LayerPlan, now: int) -> int:
    weights_end = now + layer.weights_in_cycles
    ready = now + layer.total_cycles - layer.overhead_cycles - _phase_cycles(layer, Phase.FORWARD)
    end = ready + layer.overhead_cycles - layer.overhead_cycles // 3
    spans += [
        Span(Lane.WEIGHTS_IN, index, Phase.BACKWARD, now, weights_end),
        Span(Lane.COMPUTE, index, Phase.BACKWARD, now, now + layer.backward_cycles),
        Span(Lane.GRADIENTS_OUT, index, Phase.BACKWARD, weights_end, weights_end + layer.gradients_out_cycles),
        Span(Lane.OVERHEAD, index, Phase.BACKWARD, ready, end),
    ]
    return end


def _phase_cycles(layer: LayerPlan, phase: Phase) -> int:
    """Cycles of a layer's forward or backward without the fixed time: the longer of computing and streaming, and
    its part of what neither explains (overlap that is not perfect, spilled activations)."""
    forward = max(layer.forward_cycles, layer.weights_in_cycles)
    backward = max(layer.backward_cycles, layer.weights_in_cycles + layer.gradients_out_cycles)
    longer = forward if phase == Phase.FORWARD else backward
    both = layer.total_cycles - layer.overhead_cycles
    return round(both * longer / max(forward + backward, 1))


@dataclass(frozen=True)
class Visit:
    """A stay of one sample in a region: `region` is its place in `Plan.regions`, times are cycles from the
    sample's entry."""

    region: int
    phase: Phase
    start_cycles: float
    end_cycles: float


def sample_visits(plan: Plan) -> list[Visit]:
    """The way of one sample through a pipelined plan, forward along the routes and back against them.

    A region begins after all that it reads from; how soon, before they are done with the sample, follows from the
    way of the first sample that is in the plan's step. Its cycles are divided between forward and backward as those
    of its kernels are.
    """
    places = {region.name: index for index, region in enumerate(plan.regions)}
    routes = [
        (places[route.source], places[route.target])
        for route in plan.routes
        if route.source in places and route.target in places
    ]
    forward, backward = _cycles_of_regions(plan, places)
    there = _longest_ways(range(len(places)), routes, forward, [0.0] * len(places))
    back = _longest_ways(range(len(places))[::-1], [(target, source) for source, target in routes], backward, there)
    share = _share_waited_for(plan, *max(zip(back, backward, strict=True), default=(0.0, 0.0)))
    return [
        Visit(
            region,
            phase,
            share * (ends[region] - cycles[region]),
            share * (ends[region] - cycles[region]) + cycles[region],
        )
        for phase, ends, cycles in ((Phase.FORWARD, there, forward), (Phase.BACKWARD, back, backward))
        for region in range(len(places))
    ]


def _share_waited_for(plan: Plan, whole_cycles: float, last_cycles: float) -> float:
    """The part of a sample that a region waits for; all of it makes a way of `whole_cycles`, the last visit's too.

    A step takes the way of its first sample, and the slowest region's cycles for each of the others.
    """
    slowest = max((region.cycles for region in plan.regions), default=0)
    way = plan.step_cycles - (plan.batch_size - 1) * slowest
    return min(1.0, max(0.0, way - last_cycles) / max(whole_cycles - last_cycles, 1.0))


def _cycles_of_regions(plan: Plan, places: dict[str, int]) -> tuple[list[float], list[float]]:
    """Cycles that a sample takes in each region, forward and backward."""
    kernels = {Phase.FORWARD: [0] * len(places), Phase.BACKWARD: [0] * len(places)}
    for kernel in plan.kernels:
        if kernel.layer in places and kernel.phase != Phase.UPDATE:
            phase = Phase.BACKWARD if kernel.phase == Phase.BACKWARD else Phase.FORWARD
            kernels[phase][places[kernel.layer]] += kernel.cycles
    shares = [
        there / max(there + back, 1)
        for there, back in zip(kernels[Phase.FORWARD], kernels[Phase.BACKWARD], strict=True)
    ]
    forward = [region.cycles * share for region, share in zip(plan.regions, shares, strict=True)]
    return forward, [region.cycles - there for region, there in zip(plan.regions, forward, strict=True)]


def _longest_ways(
    order: Iterable[int], edges: Iterable[tuple[int, int]], cycles: Sequence[float], earliest: Sequence[float]
) -> list[float]:
    """When each region is done, if it begins at its `earliest` and after all that have an edge to it."""
    before: dict[int, list[int]] = {}
    for source, target in edges:
        before.setdefault(target, []).append(source)
    ends = list(earliest)
    for region in order:
        ends[region] = max([ends[region], *(ends[source] for source in before.get(region, []))]) + cycles[region]
    return ends
