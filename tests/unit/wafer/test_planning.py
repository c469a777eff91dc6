"""Which mode is picked, and why."""

from dataclasses import replace

import pytest
from tests.fixtures.training import Network, compiled

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_contract.plans import Mode
from cerebras_contract.systems import load_system
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.planning import plan_graph
from cerebras_wafer.errors import CompileError

AUTO = CompileOptions("cs-2", 1, PrecisionSpec())


@pytest.fixture(scope="module")
def graph():
    return compiled().graph


def planned(graph, options):
    return plan_graph(graph, options, load_system(options.system), lambda _line: None)


def test_the_faster_mode_is_picked_and_the_reason_said(graph):
    plans = {mode: planned(graph, replace(AUTO, execution_mode=mode)) for mode in Mode}
    picked = planned(graph, AUTO)
    fastest = min(plans.values(), key=lambda plan: plan.step_cycles)
    assert (picked.mode, picked.step_cycles) == (fastest.mode, fastest.step_cycles)
    slowest = max(plans.values(), key=lambda plan: plan.step_cycles)
    assert picked.mode_reason.endswith(f"times that of {slowest.mode.words}")


@pytest.mark.parametrize("mode", list(Mode))
def test_a_mode_that_was_asked_for_is_taken(graph, mode):
    plan = planned(graph, replace(AUTO, execution_mode=mode))
    assert plan.mode == mode
    assert plan.mode_reason == "it was asked for"
    assert bool(plan.regions) == (mode == Mode.PIPELINED)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (replace(AUTO, num_csx=2), "it runs on 2 systems, pipelined on one"),
        (replace(AUTO, micro_batch=4), "micro-batches are of this mode"),
        (replace(AUTO, system="tiny"), "pipelined is not possible: "),
    ],
)
def test_what_only_weight_streaming_can_do_picks_it(options, reason):
    graph = compiled().graph if options.system != "tiny" else compiled(Network(width=4096)).graph
    plan = planned(graph, options)
    assert plan.mode == Mode.WEIGHT_STREAMING
    assert plan.mode_reason.startswith(reason)


def test_pipelined_on_two_systems_is_refused(graph):
    with pytest.raises(CompileError, match="pipelined mode runs on one system"):
        planned(graph, replace(AUTO, execution_mode=Mode.PIPELINED, num_csx=2))
