"""A profile of training steps in device time, as a trace that Chrome's about:tracing and Perfetto open."""

from collections.abc import Iterator, Sequence
from typing import Any

from cerebras_contract.plans import Phase, Plan
from cerebras_wafer.compiler.report.timeline import Lane, micro_batch_spans, sample_visits
from cerebras_wafer.simulator.clock import RunStep

INPUT = "input"
PIPELINE_LANES = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}
SAMPLES_SHOWN = 16  # of a pipelined step: the filling of the pipeline, and enough of its steady state


def chrome_trace(plan: Plan, first_step: int, last_step: int) -> dict[str, Any]:
    """The steps `first_step` to `last_step`, both included, on one system; times are device time.

    Weight streaming has a track each for compute, weights in, gradients out, input and fixed overhead; a pipelined
    step shows its first samples on their way through the regions.
    """
    steps = range(first_step, last_step + 1)
    return trace_of_steps([(step, RunStep((step - 1) * plan.step_cycles, plan)) for step in steps])


def trace_of_steps(steps: Sequence[tuple[int, RunStep]]) -> dict[str, Any]:
    """As `chrome_trace`, of steps as they were: each with its number, its start and its plan. There is at least one."""
    plan = steps[0][1].plan
    lanes = [*Lane, INPUT] if plan.layers else [*PIPELINE_LANES.values(), INPUT]
    tracks = {str(lane): number for number, lane in enumerate(lanes)}
    events = [_named("process_name", 0, f"{plan.system} (simulated)")]
    events += [_named("thread_name", number, lane) for lane, number in tracks.items()]
    for step, (start, plan) in steps:
        spans = _streamed(plan, start) if plan.layers else _pipelined(plan, start)
        events += [_event(plan, tracks[lane], name, begin, end, step) for lane, name, begin, end in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


Named = tuple[str, str, float, float]
"""Lane, name, first and last cycle."""


def _streamed(plan: Plan, start: float) -> Iterator[Named]:
    spans = micro_batch_spans(plan)
    micro_batch_cycles = sum(layer.total_cycles for layer in plan.layers)
    yield from _waited_for_input(plan, start)
    start += plan.input_wait_cycles + plan.step_overhead_cycles
    for number in range(plan.micro_batches_per_step):
        begin = start + number * micro_batch_cycles
        for span in spans:
            name = f"{plan.layers[span.layer].name} {span.phase}"
            yield span.lane, name, begin + span.start_cycles, begin + span.end_cycles


def _pipelined(plan: Plan, start: float) -> Iterator[Named]:
    visits = sample_visits(plan)
    interval = max(region.cycles for region in plan.regions)
    yield from _waited_for_input(plan, start)
    for sample in range(min(SAMPLES_SHOWN, plan.batch_size)):
        entered = start + plan.input_wait_cycles + sample * interval
        for visit in visits:
            name = f"{plan.regions[visit.region].name}, sample {sample}"
            yield PIPELINE_LANES[visit.phase], name, entered + visit.start_cycles, entered + visit.end_cycles


def _waited_for_input(plan: Plan, start: float) -> Iterator[Named]:
    if plan.input_wait_cycles:
        yield INPUT, "waiting for input", start, start + plan.input_wait_cycles


def _event(plan: Plan, track: int, name: str, begin_cycles: float, end_cycles: float, step: int) -> dict[str, Any]:
    microseconds = 1e6 / plan.clock_hz
    return {
        "ph": "X", "pid": 0, "tid": track, "name": name, "ts": begin_cycles * microseconds,
        "dur": (end_cycles - begin_cycles) * microseconds, "args": {"step": step},
    }  # fmt: skip


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": track, "name": kind, "args": {"name": name}}
