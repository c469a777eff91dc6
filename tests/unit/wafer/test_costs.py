"""The cost model: layers, steps, micro-batches, and collectives on the fabric."""

import csv
import math
from dataclasses import replace
from importlib.resources import files

import pytest

from cerebras_contract.systems import load_system
from cerebras_wafer.hardware.calibration import workloads
from cerebras_wafer.hardware.collectives import (
    best_reduce_cycles,
    broadcast_2d_cycles,
    broadcast_cycles,
    chain_reduce_cycles,
    ring_all_reduce_cycles,
    star_reduce_cycles,
    two_phase_reduce_cycles,
)
from cerebras_wafer.hardware.costs import (
    ACTIVATION_SHARE_OF_SRAM,
    TREE_HOP_SECONDS,
    Constants,
    Machine,
    best_micro_batch,
    divisors,
    evaluation_time,
    feasible_micro_batches,
    layer_time,
    residency,
    step_time,
)
from cerebras_wafer.hardware.workload import LayerWork, PhaseWork, Work

CONSTANTS = Constants(
    multiply_adds_per_cycle=2.0,
    attention_multiply_adds_per_cycle=0.5,
    exposed_share=0.25,
    layer_seconds=0.001,
    step_seconds=0.01,
    input_samples_per_second=1e9,
)
CS2 = load_system("cs-2")
MACHINE = Machine(CS2, CONSTANTS)
SECOND = CS2.pe_cycles_per_second  # PE-cycles in one


def layer(seconds: float = 0.01, weights: int = 0, boundary: float = 0.0, held: float = 0.0) -> LayerWork:
    """A layer that computes `seconds` a sample in forward and twice that in backward."""
    return LayerWork(
        name="layer",
        count=1,
        forward=PhaseWork(Work(multiply_adds=2 * seconds * SECOND)),
        backward=PhaseWork(Work(multiply_adds=4 * seconds * SECOND)),
        weights=weights,
        trained=weights,
        boundary_bytes=boundary,
        forward_bytes=held / 2,
        backward_bytes=held,
        sliced=False,
    )


def test_each_kind_of_work_runs_at_its_own_rate():
    work = Work(multiply_adds=2 * SECOND, attention_multiply_adds=0.5 * SECOND, element_cycles=SECOND)
    assert MACHINE.compute_seconds(work) == pytest.approx(3)


def test_the_longer_of_computing_and_streaming_hides_three_quarters_of_the_shorter():
    weights = round(0.004 * CS2.off_wafer_bytes_per_second / 2)  # 4 ms in, of 2 bytes each
    time = layer_time(layer(weights=weights), 1, 0.0, MACHINE)
    assert time.weights_in == pytest.approx(0.004)
    assert time.gradients_out == pytest.approx(0.004)
    assert time.forward_total == pytest.approx(0.010 + 0.25 * 0.004)
    assert time.backward_total == pytest.approx(0.020 + 0.25 * 0.008)
    assert time.total == pytest.approx(0.011 + 0.022 + 0.001)


def test_single_precision_streams_twice_the_bytes():
    one, two = (layer_time(layer(weights=10**9), 1, 0.0, replace(MACHINE, value_bytes=width)) for width in (2, 4))
    assert two.weights_in == pytest.approx(2 * one.weights_in)


def test_every_micro_batch_pays_the_fixed_time_of_every_layer():
    workload = (replace(layer(), count=12),)
    whole, halves = (step_time(workload, 64, size, MACHINE).total for size in (64, 32))
    assert halves - whole == pytest.approx(12 * CONSTANTS.layer_seconds)


def test_more_systems_pay_the_depth_of_the_tree_not_its_width():
    overheads = [replace(MACHINE, num_csx=systems).layer_overhead_seconds for systems in (1, 2, 64)]
    assert overheads == pytest.approx([0.001 + 2 * depth * TREE_HOP_SECONDS for depth in (0, 1, 6)])


def test_what_does_not_fit_beside_a_running_layer_is_spilled_and_hidden_while_the_link_has_room():
    room = ACTIVATION_SHARE_OF_SRAM * CS2.sram_bytes
    workload = (layer(boundary=0.75 * room, held=0.5 * room),)
    held = residency(workload, 1, MACHINE)
    assert held.fits
    assert held.spilled_bytes == pytest.approx(0.25 * room)
    assert held.spilled_share == pytest.approx(1 / 3)
    time = layer_time(workload[0], 1, held.spilled_share, MACHINE)
    assert time.spill == pytest.approx(0.25 * room / CS2.off_wafer_bytes_per_second)
    assert time.forward_total == pytest.approx(max(0.010, time.spill))
    slow = layer_time(layer(seconds=10, boundary=0.75 * room), 1, held.spilled_share, MACHINE)
    assert slow.forward_total == pytest.approx(10)


def test_a_micro_batch_whose_layer_does_not_fit_is_no_candidate():
    room = ACTIVATION_SHARE_OF_SRAM * CS2.sram_bytes
    workload = (layer(held=room / 10),)
    assert feasible_micro_batches(workload, 24, MACHINE) == [8, 6, 4, 3, 2, 1]
    assert best_micro_batch(workload, 24, MACHINE) == 8
    assert feasible_micro_batches((layer(held=2 * room),), 24, MACHINE) == [1]
    assert feasible_micro_batches((replace(layer(held=room), sliced=True),), 24, MACHINE) == divisors(24)


def test_a_step_waits_for_the_hosts_that_feed_it():
    slow = replace(MACHINE, constants=replace(CONSTANTS, input_samples_per_second=10))
    time = step_time((layer(),), 8, 8, slow)
    assert time.total == pytest.approx(0.8)
    assert time.input_wait == pytest.approx(0.8 - step_time((layer(),), 8, 8, MACHINE).total)


def test_evaluation_is_the_forward_pass_and_a_third_of_the_fixed_times():
    assert evaluation_time((layer(),), 8, 8, MACHINE).total == pytest.approx(0.080 + (0.001 + 0.01) / 3)


@pytest.mark.parametrize("batch", [1, 7, 64, 96, 1000])
def test_divisors_are_all_and_falling(batch):
    assert divisors(batch) == [number for number in range(batch, 0, -1) if batch % number == 0]


def test_work_of_layers_round_trips():
    for name, workload in workloads().items():
        assert tuple(LayerWork.from_data(part.as_data()) for part in workload) == workload, name


def simulated() -> list[dict[str, str]]:
    text = (files("cerebras_wafer") / "hardware" / "points" / "collectives.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("row", simulated(), ids=lambda row: f"{row['words']}-words-groups-of-{row['group']}")
def test_reduction_takes_what_the_vendors_simulator_says(row):
    cycles = two_phase_reduce_cycles(int(row["words"]), int(row["elements"]), int(row["group"]))
    assert cycles == pytest.approx(int(row["cycles"]), rel=0.07 if row["words"] == "64" else 0.02)


def test_the_best_reduction_is_never_worse_than_a_chain():
    for words, elements in ((1, 4), (64, 512), (4096, 512), (100_000, 750)):
        best = best_reduce_cycles(words, elements)
        assert best <= chain_reduce_cycles(words, elements)
        assert best <= star_reduce_cycles(words, elements)
    assert best_reduce_cycles(64, 512) < chain_reduce_cycles(64, 512)
    assert best_reduce_cycles(100_000, 750) == chain_reduce_cycles(100_000, 750)


def test_collectives_are_bounded_by_their_words_and_their_way():
    words, columns, rows = 1000, 750, 994
    assert broadcast_cycles(words, columns) == words + columns + 4
    assert broadcast_2d_cycles(words, columns, rows) == words + columns + rows + 3
    assert ring_all_reduce_cycles(words, 100) == math.ceil(198 * 10) + 394 + 198 * 5
