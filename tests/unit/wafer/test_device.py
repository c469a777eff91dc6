"""Device time, counters, power and temperature follow the plan."""

import math

import pytest
from tests.fixtures.training import compiled

from cerebras_contract.plans import Bound
from cerebras_contract.systems import load_system
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.counters import step_counters
from cerebras_wafer.simulator.thermal import TIME_CONSTANT_SECONDS, Thermometer, power_watts, settled_celsius

CS_2 = load_system("cs-2")


@pytest.fixture(scope="module")
def plan():
    return compiled().plan


def test_every_cycle_of_a_step_is_work_or_waiting(plan):
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
