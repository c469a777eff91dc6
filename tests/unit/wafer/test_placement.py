"""Placement: stages, sizes, rectangles and routes, and the checker that is run on each."""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.fixtures.training import compiled
from tools.pipelined_workloads import Transformer

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_contract.plans import Bound, Mode, Phase
from cerebras_contract.systems import load_system
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import Weight
from cerebras_wafer.compiler.ir.scale import scaled
from cerebras_wafer.compiler.placement.check import Placement, check, violations
from cerebras_wafer.compiler.placement.constants import load_constants
from cerebras_wafer.compiler.placement.floorplan import Rectangle, floorplan
from cerebras_wafer.compiler.placement.inputs import input_bytes
from cerebras_wafer.compiler.placement.place import place, place_stages
from cerebras_wafer.compiler.placement.routes import colours_in_use
from cerebras_wafer.compiler.placement.size import Sizer
from cerebras_wafer.compiler.placement.stages import Edge, Stage, StageGraph, stage_graph, weight_bytes
from cerebras_wafer.errors import CompileError, CompilerBug

CS2 = load_system("cs-2")
CONSTANTS = load_constants()
HALF = CompileOptions("cs-2", 1, PrecisionSpec(compute_dtype="float16"))
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
GPT2_SMALL = Transformer(0, 12, 768, 12, 64, 3072, 1024, 50257)


def fabric(columns: int, rows: int, **figures):
    return CS2.model_copy(update={"fabric_columns": columns, "fabric_rows": rows, **figures})


def placed_on(graph: StageGraph, system, inputs: float = 0.0):
    return place_stages(graph, system, CONSTANTS, value_bytes=2, input_bytes=inputs)


def stage(name: str, work: float = 1e6, resident: float = 0.0, stash: float = 0.0, **more) -> Stage:
    return Stage(name, work / 3, work * 2 / 3, resident, stash, **more)


def chain(*stages: Stage, size: float = 1e4) -> StageGraph:
    return StageGraph(stages, tuple(Edge(n, n + 1, size) for n in range(len(stages) - 1)))


@st.composite
def stage_graphs(draw) -> StageGraph:
    amount = st.floats(0, 1e8, allow_nan=False)
    memory = st.floats(0, 3e5)
    stages = draw(
        st.lists(
            st.tuples(amount, amount, memory, memory, st.floats(0, 1e3), st.floats(0, 1e4)), min_size=1, max_size=40
        )
    )
    count = len(stages)
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    pairs = draw(st.sets(ends, max_size=2 * count)) if count > 1 else set()
    return StageGraph(
        tuple(Stage(f"stage{n}", *values) for n, values in enumerate(stages)),
        tuple(Edge(source, target, 1e3 * (source + 1)) for source, target in sorted(pairs)),
    )


@QUICK
@given(stage_graphs(), st.integers(1, 120), st.integers(1, 120))
def test_whatever_the_planner_makes_passes_the_checker(graph, columns, rows):
    system = fabric(columns, rows)
    try:
        placed = placed_on(graph, system)  # runs the checker: a violation is a CompilerBug
    except CompileError:
        return
    boxes = placed.placement.rectangles
    assert placed.rate > 0
    assert len(boxes) == len(graph.stages)
    assert sum(box.area for box in boxes) <= columns * rows
    cycles = [part.cycles(box.area) for part, box in zip(graph.stages, boxes, strict=True)]
    assert placed.rate * max(cycles) <= CS2.clock_hz * 1.000001
    assert placed_on(graph, system).placement == placed.placement


@QUICK
@given(stage_graphs(), st.data())
def test_the_checker_finds_what_was_spoilt(graph, data):
    system = fabric(97, 61)
    try:
        good = placed_on(graph, system).placement
    except CompileError:
        assume(False)
    assert violations(good, system) == []
    number = data.draw(st.integers(0, len(good.rectangles) - 1))
    spoil = data.draw(
        st.sampled_from([_shifted_out, _onto_another, _too_full, _without, *(_ROUTE_FAULTS if good.routes else [])])
    )
    bad = spoil(good, number)
    assume(bad is not None)
    assert violations(bad, system)
    with pytest.raises(CompilerBug, match="the placement is wrong"):
        check(bad, system)


def _changed(placement: Placement, number: int, **figures) -> Placement:
    boxes = list(placement.rectangles)
    boxes[number] = replace(boxes[number], **figures)
    return replace(placement, rectangles=tuple(boxes))


def _shifted_out(placement, number):
    return _changed(placement, number, column=97)


def _onto_another(placement, number):
    others = [box for at, box in enumerate(placement.rectangles) if at != number]
    return _changed(placement, number, column=others[0].column, row=others[0].row) if others else None


def _too_full(placement, number):
    loads = list(placement.sram_bytes_per_pe)
    loads[number] = CS2.sram_bytes_per_pe + 1
    return replace(placement, sram_bytes_per_pe=tuple(loads))


def _without(placement, number):
    return replace(placement, rectangles=placement.rectangles[:number] + placement.rectangles[number + 1 :])


def _route_gone(placement, _number):
    return replace(placement, routes=placement.routes[1:])


def _route_off_the_fabric(placement, _number):
    return _route_changed(placement, end=(-1, 0))


def _route_to_elsewhere(placement, _number):
    route = placement.routes[0]
    return _route_changed(placement, end=route.start)


def _no_such_colour(placement, _number):
    return _route_changed(placement, colour=CS2.fabric_colours)


def _one_colour_for_all(placement, _number):
    if colours_in_use(placement.routes) <= 2:
        return None
    return replace(placement, routes=tuple(replace(route, colour=0) for route in placement.routes))


def _route_changed(placement, **figures):
    return replace(placement, routes=(replace(placement.routes[0], **figures), *placement.routes[1:]))


_ROUTE_FAULTS = [_route_gone, _route_off_the_fabric, _route_to_elsewhere, _no_such_colour, _one_colour_for_all]


@QUICK
@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(1, 90), st.integers(1, 90))
def test_rectangles_are_as_large_as_asked(sizes, columns, rows):
    boxes = floorplan(sizes, columns, rows)
    if boxes is None:
        assert sum(sizes) > 0.5 * columns * rows
    else:
        assert all(box.area >= size for box, size in zip(boxes, sizes, strict=True))


def test_stages_without_memory_share_the_fabric_by_their_work():
    graph = chain(stage("a", 1e9), stage("b", 3e9), stage("c", 6e9))
    sizing = Sizer(graph, CS2, CONSTANTS).best(500_000)
    assert sizing.processing_elements == pytest.approx((50_000, 150_000, 300_000), rel=1e-3)
    assert sizing.rate == pytest.approx(500_000 * CS2.clock_hz / 1e10, rel=1e-3)


def test_early_stages_hold_more_samples_than_late_ones():
    parts = [stage(f"s{n}", 1e9, resident=1e6, stash=1e8) for n in range(8)]
    sizer = Sizer(chain(*parts), CS2, CONSTANTS)
    held = sizer.held_bytes(1e5, [10_000] * 8)
    assert held == sorted(held, reverse=True)
    assert held[-1] == 1e6 + 1e8  # the sample at hand
    delay = 7 * 1e9 / 10_000 / CS2.clock_hz
    assert held[0] == pytest.approx(1e6 + 1e8 * (1 + CONSTANTS.stash_samples_per_stage * 1e5 * delay))


def test_a_deeper_model_is_slower_than_its_depth_once_the_stash_fills_the_wafer():
    def rate(layers: int) -> float:
        parts = [stage(f"s{n}", 1e9, stash=2e6) for n in range(layers)]
        return Sizer(chain(*parts), CS2, CONSTANTS).best(600_000).rate

    assert rate(100) / rate(200) == pytest.approx(2, rel=0.05)  # twice the work
    assert rate(800) / rate(1600) > 3


def test_a_loss_has_a_floor_that_no_pes_go_under():
    graph = chain(stage("a", 1e5), stage("loss", 1e5, floor_cycles=10_000))
    placed = placed_on(graph, CS2)
    assert placed.rate == pytest.approx(CS2.clock_hz / 10_000)
    assert placed.bound == Bound.OVERHEAD


def test_the_input_can_be_what_is_waited_for():
    placed = placed_on(chain(stage("a", 1e4)), CS2, inputs=1e6)
    assert placed.rate == pytest.approx(CS2.off_wafer_bytes_per_second / 1e6)
    assert placed.bound == Bound.INPUT


def test_a_thin_link_slows_the_pipeline():
    graph = chain(stage("a", 1e4), stage("b", 1e4), size=1e9)
    placed = placed_on(graph, fabric(30, 30))
    slowest = max(route.cycles(2, CONSTANTS.link_cycles_per_element) for route in placed.placement.routes)
    assert placed.rate == pytest.approx(CS2.clock_hz / slowest)
    assert placed.bound == Bound.FABRIC


@pytest.fixture(scope="module")
def gpt2_plan():
    return place(scaled(GPT2_SMALL.graph, 32), HALF, CS2)


def test_gpt2_fills_the_wafer_of_the_published_report():
    plan = place(scaled(GPT2_SMALL.graph, 32), HALF, fabric(592, 520))
    assert plan.mode == Mode.PIPELINED
    assert 0.9 <= plan.fill <= 0.96
    assert plan.bound == Bound.COMPUTE
    assert min(region.samples_per_second for region in plan.regions) == pytest.approx(860.3, rel=CONSTANTS.worst_error)
    cores = [region for region in plan.regions if region.name.endswith("core.attention")]
    rates = [region.samples_per_second for region in cores]
    assert len(rates) == 12
    assert max(rates) / min(rates) < 1.1  # balanced


def test_every_kernel_of_gpt2_runs_in_one_region(gpt2_plan):
    names = [name for region in gpt2_plan.regions for name in region.kernels]
    assert sorted(names) == sorted(k.name for k in gpt2_plan.kernels if k.phase != Phase.UPDATE)
    cycles = {kernel.name: kernel.cycles for kernel in gpt2_plan.kernels}
    head = next(region for region in gpt2_plan.regions if region.name == "head")
    assert sum(cycles[name] for name in head.kernels) == pytest.approx(head.cycles, abs=len(head.kernels) + 1)
    assert all(kernel.utilization <= CONSTANTS.fraction_of_peak for kernel in gpt2_plan.kernels)


def test_neighbours_of_gpt2_lie_near_each_other(gpt2_plan):
    hops = sorted(route.hops for route in gpt2_plan.routes)
    assert hops[len(hops) // 2] <= 10
    assert sum(hops) / len(hops) < (CS2.fabric_columns + CS2.fabric_rows) / 3 / 10  # a tenth of two random PEs
    assert max(route.colour for route in gpt2_plan.routes) + 2 <= CS2.fabric_colours


def test_a_step_fills_the_pipeline_and_drains_it(gpt2_plan):
    slowest = min(region.samples_per_second for region in gpt2_plan.regions)
    longer = place(scaled(GPT2_SMALL.graph, 64), HALF, CS2)
    a_sample = (longer.step_cycles - gpt2_plan.step_cycles) / 32
    assert CS2.clock_hz / a_sample == pytest.approx(slowest, rel=0.01)
    assert gpt2_plan.step_cycles > 32 * a_sample
    assert gpt2_plan.evaluation_cycles < gpt2_plan.step_cycles / 2
    assert (gpt2_plan.micro_batch, gpt2_plan.micro_batches_per_step) == (1, 32)


def test_the_memory_of_gpt2_is_sixteen_bytes_a_parameter(gpt2_plan):
    elements = sum(math.prod(weight.shape) for weight in GPT2_SMALL.graph.weights)
    memory = gpt2_plan.memory
    kept = memory.weights_bytes + memory.optimizer_state_bytes + memory.gradients_bytes
    assert kept == 16 * elements
    assert 0 < memory.activations_bytes < memory.wafer_sram_bytes
    assert memory.peak_sram_bytes_per_pe <= CS2.sram_bytes_per_pe


def test_bytes_of_a_weight_follow_optimizer_and_precision():
    def size(trained: bool, state: int, width: int) -> int:
        return weight_bytes(Weight("w", (10, 10), trained, state), width)

    assert size(True, 200, 2) == 1600  # Adam in 16 bits
    assert size(True, 200, 4) == 1600  # Adam in 32: no master copy
    assert size(True, 0, 2) == 800  # plain SGD
    assert size(False, 0, 2) == 200  # frozen


@pytest.fixture(scope="module")
def network():
    return compiled().graph


def test_light_kernels_join_the_stage_that_makes_what_they_read(network):
    graph = stage_graph(network, CS2, CONSTANTS)
    assert [part.name for part in graph.stages] == ["conv", "norm", "head", "loss"]
    members = {part.name: [name for name, _ in part.kernels] for part in graph.stages}
    placed = [name for names in members.values() for name in names]
    assert sorted(placed) == sorted(k.name for k in network.kernels if k.phase != Phase.UPDATE)
    assert "forward.relu.elementwise" in members["conv"]
    assert any(name.startswith("backward.conv") for name in members["conv"])
    pairs = {(edge.source, edge.target) for edge in graph.edges}
    assert {(0, 1), (1, 2), (2, 3)} <= pairs


def test_a_captured_model_is_placed_and_says_that_nothing_like_it_was_measured(network):
    plan = place(network, CompileOptions("cs-2", 1, PrecisionSpec()), CS2)
    assert {region.name for region in plan.regions} == {"conv", "norm", "head", "loss"}
    assert not plan.trust.calibrated
    assert "no transformer, in float32" in plan.trust.statement
    assert input_bytes(network, 4) == 4 * 36
    assert [kernel.off_wafer_bytes for kernel in plan.kernels if kernel.off_wafer_bytes] == [4 * 36]


def test_trust_carries_the_error_of_the_calibration(gpt2_plan):
    trust = gpt2_plan.trust
    assert trust.calibrated
    assert (trust.mean_error, trust.worst_error) == (CONSTANTS.mean_error, CONSTANTS.worst_error)
    assert not place(GPT2_SMALL.graph, HALF, load_system("cs-3")).trust.calibrated


def test_a_tied_table_lives_where_it_is_multiplied():
    graph = stage_graph(GPT2_SMALL.graph, CS2, CONSTANTS)
    table, head = (next(part for part in graph.stages if part.name == name) for name in ("tokens", "head"))
    elements = 50257 * 768
    assert head.resident_bytes == pytest.approx(16 * elements * CONSTANTS.resident_factor)
    assert table.resident_bytes == 4 * elements  # a copy, and its gradient on the way


def test_more_than_one_system_is_refused():
    with pytest.raises(CompileError, match="pipelined mode runs on one system, and num_csx is 2") as refusal:
        place(GPT2_SMALL.graph, replace(HALF, num_csx=2), CS2)
    assert "weight_streaming" in str(refusal.value)


def test_what_does_not_fit_is_refused_with_the_numbers():
    gpt2_xl = Transformer(0, 48, 1600, 25, 64, 6400, 1024, 50257)
    with pytest.raises(CompileError) as refusal:
        place(gpt2_xl.graph, HALF, CS2)
    text = str(refusal.value)
    assert "does not fit on cs-2 in pipelined mode" in text
    assert "there are 30.9 GB" in text
    assert "its largest stages: head 3." in text
    assert "execution_mode: weight_streaming" in text


def test_too_many_crossing_routes_are_refused():
    parts = tuple(stage(f"s{n}", 1e6) for n in range(12))
    edges = tuple(Edge(a, b, 1e3) for a in range(12) for b in range(a + 1, 12))
    with pytest.raises(CompileError, match=r"routes between the stages need \d+ colours, and a PE of cs-2 has 2"):
        placed_on(StageGraph(parts, edges), fabric(40, 40, fabric_colours=2))


def test_more_stages_than_pes_are_refused():
    with pytest.raises(CompileError, match=r"does not fit on cs-2 in pipelined mode.*\(30 PEs\)"):
        placed_on(chain(*(stage(f"s{n}") for n in range(30))), fabric(5, 5))


def test_rectangles_that_meet_are_found():
    boxes = (Rectangle(0, 0, 4, 4), Rectangle(3, 3, 4, 4))
    graph = StageGraph((stage("a"), stage("b")), ())
    assert violations(Placement(graph, boxes, (0.0, 0.0), ()), CS2) == ["a and b overlap"]
