"""Device time, counters, power and temperature follow the plan."""

import math

import pytest
from tests.fixtures.training import compiled

from cerebras_contract.plans import Bound, Mode
from cerebras_contract.systems import load_system
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.counters import step_counters
from cerebras_wafer.simulator.profile import chrome_trace
from cerebras_wafer.simulator.thermal import TIME_CONSTANT_SECONDS, Thermometer, power_watts, settled_celsius

CS_2 = load_system("cs-2")


@pytest.fixture(scope="module")
def plan():
    return compiled(mode=Mode.WEIGHT_STREAMING).plan


@pytest.mark.parametrize("mode", list(Mode))
def test_every_cycle_of_a_step_is_work_or_waiting(mode):
    plan = compiled(mode=mode).plan
    counters = step_counters(plan, CS_2, half_precision=False)
    assert counters.compute_cycles + sum(counters.stalled_cycles.values()) == counters.cycles == plan.step_cycles
    assert counters.compute_cycles >= 0
    assert 0 < counters.utilization < 1


def test_a_plan_that_is_edited_changes_the_clock_and_the_waits(plan):
    first = plan.layers[0]
    slower = first.model_copy(
        update={
            "weights_in_cycles": first.weights_in_cycles + 1000, "total_cycles": first.total_cycles + 2000,
        }
    )  # fmt: skip
    edited = plan.model_copy(update={"layers": [slower, *plan.layers[1:]], "step_cycles": plan.step_cycles + 2000})
    before, after = (step_counters(p, CS_2, half_precision=False) for p in (plan, edited))
    waited = after.stalled_cycles[Bound.WEIGHT_IO] - before.stalled_cycles.get(Bound.WEIGHT_IO, 0)
    assert 0 < waited <= 2000
    clock = DeviceClock(edited, CS_2, half_precision=False)
    clock.advance_step()
    assert clock.cycles == plan.step_cycles + 2000


def test_power_lies_between_idle_and_full_load():
    assert power_watts(CS_2, 0.0) == CS_2.idle_watts
    assert power_watts(CS_2, 1.0) == CS_2.full_load_watts
    assert power_watts(CS_2, 0.5) == pytest.approx((CS_2.idle_watts + CS_2.full_load_watts) / 2)


def test_temperature_reaches_63_percent_in_one_time_constant_however_the_time_is_cut():
    whole, cut = Thermometer(CS_2), Thermometer(CS_2)
    start, end = whole.celsius, settled_celsius(CS_2, CS_2.full_load_watts)
    whole.after(TIME_CONSTANT_SECONDS, CS_2.full_load_watts)
    for _ in range(100):
        cut.after(TIME_CONSTANT_SECONDS / 100, CS_2.full_load_watts)
    assert (whole.celsius - start) / (end - start) == pytest.approx(1 - math.exp(-1))
    assert cut.celsius == pytest.approx(whole.celsius)


def test_the_instruments_are_read_by_name(plan):
    clock = DeviceClock(plan, CS_2, half_precision=False)
    clock.advance_step()
    readings = clock.readings()
    assert readings["device/step_cycles"] == plan.step_cycles
    assert readings["device/power_watts"] >= CS_2.idle_watts
    assert "device/stalled_on_overhead" in readings


def test_a_profile_has_a_track_for_each_of_compute_weights_gradients_and_input(plan):
    trace = chrome_trace(plan, 2, 3)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    tracks = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {"compute", "weights in", "gradients out", "input"} <= set(tracks.values())
    assert {event["args"]["step"] for event in events} == {2, 3}
    step_microseconds = plan.step_seconds * 1e6
    assert min(event["ts"] for event in events) >= step_microseconds
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(3 * step_microseconds, rel=1e-3)
    assert all(event["dur"] > 0 for event in events)


def test_a_profile_of_a_pipelined_step_follows_samples_through_the_regions():
    plan = compiled(mode=Mode.PIPELINED).plan
    events = [event for event in chrome_trace(plan, 1, 1)["traceEvents"] if event["ph"] == "X"]
    assert {event["name"].split(", ")[0] for event in events} == {region.name for region in plan.regions}
    assert {event["name"].split(", ")[1] for event in events} == {f"sample {number}" for number in range(8)}
