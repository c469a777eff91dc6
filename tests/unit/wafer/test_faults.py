"""Faults of a simulated system: when they happen, and what the plan is then."""

import pytest
from tests.fixtures.training import compiled

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_contract.faults import FaultPlan
from cerebras_contract.plans import Bound, Mode
from cerebras_contract.systems import load_system
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.faults import Conditions, FaultSchedule, FaultyPlans

CS_2 = load_system("cs-2")


def schedule(*events, seed=0):
    return FaultSchedule(FaultPlan.model_validate({"seed": seed, "events": list(events)}))


def conditions(faults, steps=8):
    return [faults.conditions(step) for step in range(1, steps + 1)]


def test_each_fault_lasts_as_long_as_it_says():
    faults = schedule(
        {"kind": "slow_link", "step": 2, "factor": 4.0, "steps": 3},
        {"kind": "slow_link", "step": 4, "factor": 2.0},
        {"kind": "defects", "step": 3, "count": 5},
        {"kind": "defects", "step": 6, "count": 7},
        {"kind": "stalled_input", "step": 7, "seconds": 0.5},
        {"kind": "lose_system", "step": 5},
    )
    assert [one.link_factor for one in conditions(faults)] == [1, 4, 4, 4, 2, 2, 2, 2]
    assert [one.defects for one in conditions(faults)] == [0, 0, 5, 5, 5, 12, 12, 12]
    assert [one.stalled_seconds for one in conditions(faults)] == [0, 0, 0, 0, 0, 0, 0.5, 0]
    assert [faults.loses_system(step) for step in range(1, 9)] == [False] * 4 + [True] + [False] * 3


def test_drawn_faults_are_those_of_the_seed_wherever_one_begins_to_ask():
    event = {"kind": "defects", "mean_steps": 20, "count": 1}
    begun = [step for step in range(1, 2001) if schedule(event).beginning(step)]
    assert 60 < len(begun) < 140  # about one in twenty
    assert begun == [step for step in range(1, 2001) if schedule(event).beginning(step)]
    assert begun != [step for step in range(1, 2001) if schedule(event, seed=1).beginning(step)]
    assert schedule(event).conditions(1500) == conditions(schedule(event), 1500)[-1]
    link = schedule({"kind": "slow_link", "mean_steps": 30, "factor": 2.0, "steps": 4})
    slow = [step for step in range(1, 301) if link.conditions(step).link_factor == 2.0]
    starts = [step for step in range(1, 301) if link.beginning(step)]
    assert slow == sorted({s + later for s in starts for later in range(4) if s + later <= 300})


@pytest.fixture(scope="module")
def streamed():
    made = compiled(mode=Mode.WEIGHT_STREAMING)
    options = CompileOptions("cs-2", 1, PrecisionSpec())
    return made.plan, FaultyPlans(made.plan, made.graph, options, CS_2)


def test_a_sound_system_has_the_plan_of_the_artifact(streamed):
    plan, plans = streamed
    assert plans.plan_for(Conditions()) is plan
    spares = Conditions(defects=CS_2.spare_processing_elements)
    assert plans.plan_for(spares) is plan  # spare elements stand in


def test_a_slow_link_lengthens_what_is_streamed_and_nothing_else(streamed):
    plan, plans = streamed
    slow = plans.plan_for(Conditions(link_factor=8.0))
    for before, after in zip(plan.layers, slow.layers, strict=True):
        assert after.weights_in_cycles == pytest.approx(8 * before.weights_in_cycles, abs=8)
        assert after.forward_cycles == before.forward_cycles
        assert after.overhead_cycles == before.overhead_cycles
    assert slow.micro_batch == plan.micro_batch
    assert slow.step_cycles > plan.step_cycles


def test_defects_beyond_the_spares_take_rows_of_the_fabric():
    tiny = load_system("tiny")
    made = compiled(mode=Mode.WEIGHT_STREAMING, system="tiny")
    plans = FaultyPlans(made.plan, made.graph, CompileOptions("tiny", 1, PrecisionSpec()), tiny)
    half = tiny.fabric_rows // 2
    broken = plans.plan_for(Conditions(defects=tiny.spare_processing_elements + tiny.fabric_columns * half))
    assert (broken.fabric_columns, broken.fabric_rows) == (tiny.fabric_columns, tiny.fabric_rows - half)
    computing = [sum(layer.forward_cycles for layer in one.layers) for one in (made.plan, broken)]
    assert computing[1] == pytest.approx(2 * computing[0], rel=0.05)


def test_a_stalled_input_is_a_wait_of_one_step(streamed):
    plan, plans = streamed
    stalled = plans.plan_for(Conditions(stalled_seconds=0.5))
    clock = DeviceClock(plan, CS_2, half_precision=False)
    clock.use(stalled)
    clock.advance_step()
    assert clock.cycles == plan.step_cycles + 0.5 * plan.clock_hz
    assert clock.counters.stalled_cycles[Bound.INPUT] == 0.5 * plan.clock_hz


def test_pipelined_systems_have_faults_too():
    made = compiled(mode=Mode.PIPELINED)
    plans = FaultyPlans(made.plan, made.graph, CompileOptions("cs-2", 1, PrecisionSpec()), CS_2)
    broken = plans.plan_for(Conditions(defects=CS_2.spare_processing_elements + 750 * 700))
    assert broken.mode is Mode.PIPELINED
    assert broken.fabric_rows == 294
    assert broken.step_cycles >= made.plan.step_cycles
