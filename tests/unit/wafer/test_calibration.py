"""The calibration: what is committed is what its tool makes of the published points."""

import csv
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from statistics import fmean

import pytest
import tools.calibrate as tool
from tests.fixtures.published import two_blocks

from cerebras_contract.systems import load_system
from cerebras_wafer.hardware.calibration import (
    CALIBRATED_SYSTEMS,
    Use,
    calibrated_system,
    calibration,
    constants_for,
    error,
    errors_of,
    micro_batch_of,
    points,
    points_of,
    workloads,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("system", CALIBRATED_SYSTEMS)
def test_the_stated_errors_are_those_of_the_committed_constants(system):
    stated = calibration(system)
    for use, said in ((Use.FIT, stated.fit), (Use.HELD_OUT, stated.held_out)):
        found = errors_of(points_of(system, use))
        assert found.points == said.points
        assert (found.mean, found.worst) == pytest.approx((said.mean, said.worst), abs=1e-3)


def test_points_held_out_are_met_within_the_bounds_that_are_asked_for():
    magnitudes = [abs(error(point)) for point in points() if point.use == Use.HELD_OUT]
    assert len(magnitudes) >= 15
    assert fmean(magnitudes) <= 0.05
    assert max(magnitudes) <= 0.15


@pytest.mark.parametrize("system", CALIBRATED_SYSTEMS)
def test_the_tool_fits_the_committed_constants(system):
    base = tool.START if system == "cs-2" else calibration("cs-2").constants
    fitted = tool.fit_system(system, base)
    assert asdict(fitted) == pytest.approx(asdict(calibration(system).constants), rel=5e-3, abs=1e-3)


def test_of_each_models_batches_every_second_is_held_out_and_two_models_wholly():
    for system in CALIBRATED_SYSTEMS:
        counted = sorted(points_of(system, Use.FIT, Use.HELD_OUT), key=lambda point: point.batch)
        for workload in {point.workload for point in counted}:
            uses = [point.use for point in counted if point.workload == workload]
            if workload in ("cerebras-gpt-13b", "gpt2-small"):
                assert set(uses) == {Use.HELD_OUT}
            else:
                assert uses == [(Use.FIT, Use.HELD_OUT)[place % 2] for place in range(len(uses))]


def test_runs_of_the_same_are_one_point():
    [point] = [p for p in points() if p.workload == "bert-large-pretrain" and p.batch == 512]
    assert point.runs == 5
    assert point.samples_per_second == pytest.approx((2924.54 + 2922.56 + 2922.66 + 2937.77 + 2931.64) / 5)


def test_older_software_counts_in_no_error():
    for point in points():
        assert point.factor == 1 or point.use == Use.CHECK


@pytest.mark.parametrize("name", ["weight_streaming.csv", "micro_batches.csv", "collectives.csv"])
def test_every_row_names_its_source(name):
    text = (files("cerebras_wafer") / "hardware" / "points" / name).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) >= 7
    assert all(row["source"] and row["source_url"] for row in rows)


def test_a_large_batch_runs_in_the_micro_batches_that_the_published_rates_show():
    chosen = {p.batch: micro_batch_of(p) for p in points() if p.workload == "bert-large-classes"}
    assert chosen == {128: 128, 1024: 1024, 2048: 2048, 4096: 2048, 16384: 2048}


@pytest.mark.parametrize("name", ["fc-mnist", "bert-base-classes"])
def test_the_stored_work_of_a_model_is_what_a_capture_gives(name):
    assert tool.published_workload(name, two_blocks(name)) == workloads()[name]


def test_other_systems_take_the_constants_of_the_one_they_are_like_or_the_nearest():
    assert calibrated_system(load_system("cs-1")) == "cs-2"
    assert calibrated_system(load_system("tiny")) == "cs-2"
    own = load_system("cs-3").model_copy(update={"name": "my-wse", "like": None, "half_multiply_adds_per_cycle": 16.0})
    assert calibrated_system(own) == "cs-3"
    theirs = calibration("cs-3").constants
    assert constants_for(own).multiply_adds_per_cycle == pytest.approx(2 * theirs.multiply_adds_per_cycle)
    assert constants_for(own).layer_seconds == theirs.layer_seconds


def test_single_precision_multiplies_at_a_quarter_of_the_rate_on_cs_2():
    half, single = (constants_for(load_system("cs-2"), half_precision=half) for half in (True, False))
    assert single.multiply_adds_per_cycle == pytest.approx(half.multiply_adds_per_cycle / 4)


def test_the_documentation_shows_the_tables_that_the_tool_prints():
    document = (ROOT / "docs" / "machine.md").read_text(encoding="utf-8")
    assert tool.table() in document
    assert tool.capacity_table() in document
