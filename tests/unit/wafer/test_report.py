"""The compile report: its numbers, report.txt, and the timelines and the page made of a plan."""

import json
import re
from html import unescape
from itertools import pairwise

import pytest
from tests.fixtures.plans import kernel, pipelined_plan, report_of, streaming_plan
from tests.fixtures.training import compiled

from cerebras_contract.plans import Mode, Phase, Plan, Trust
from cerebras_contract.reports import Report
from cerebras_wafer.compiler.report.page import report_page
from cerebras_wafer.compiler.report.repeats import shown
from cerebras_wafer.compiler.report.text import report_text
from cerebras_wafer.compiler.report.timeline import Lane, micro_batch_spans, sample_visits
from cerebras_wafer.compiler.report.units import (
    error_band,
    readable_count,
    readable_seconds,
    readable_size,
    readable_sram,
)

UNCALIBRATED = Trust(calibrated=False, family="", calibration_set="", statement="Nothing like it was measured.")


def data_of(page: str) -> dict:
    """The data embedded in a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def test_a_report_reads_back_from_its_json():
    report = report_of(streaming_plan())
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_the_layers_of_a_real_report_take_the_whole_step():
    made = compiled(mode=Mode.WEIGHT_STREAMING)
    in_layers = sum(layer.seconds for layer in made.report.layers)
    assert in_layers + made.report.outside_layers_seconds == pytest.approx(made.plan.step_seconds)
    assert in_layers > 0
    assert {kernel.module for kernel in made.report.kernels} >= {"conv", "norm", "head"}
    assert Phase.UPDATE not in {kernel.phase for kernel in made.report.kernels}


def test_layers_alike_are_shown_once_with_their_number():
    report = report_of(streaming_plan(96))
    rows = shown(report)
    assert [(layer.name, count) for layer, count in rows.layers] == [("tokens", 1), ("blocks.0", 96), ("head", 1)]
    assert sum(layer.seconds * count for layer, count in rows.layers) == pytest.approx(
        sum(layer.seconds for layer in report.layers)
    )
    assert sum(count for _, count in rows.kernels) == len(report.kernels)


def test_the_text_has_the_fields_and_rows_of_a_compile_report():
    text = report_text(report_of(streaming_plan(96)))
    assert re.search(r"^Samples/s +40\.8 \(off by 3\.7% in the mean, 12\.8% at worst\)$", text, re.MULTILINE)
    for field in ("Compute Samples/s", "Transmission Samples/s", "Active PEs", "Compute Utilization"):
        assert re.search(rf"^{field} +[\d.,]+", text, re.MULTILINE), field
    assert re.search(r"^  blocks\.0 +x 96 +16\.00 ms +4,000 ", text, re.MULTILINE)
    assert len(re.findall(r"^  forward\.blocks", text, re.MULTILINE)) == 20
    assert re.search(r"^ +16 .* chosen$", text, re.MULTILINE)
    warned = "train.py:24: head: 10 outputs are not a multiple of 16 (costs about 11% of the rate) [compile.unaligned]"
    assert warned in text


def test_the_text_of_a_pipelined_plan_has_its_regions():
    plan = pipelined_plan()
    text = report_text(report_of(plan))
    (row,) = re.findall(r"^  blocks\.3\.2 .*$", text, re.MULTILINE)
    assert f" {plan.regions[17].processing_elements:,} " in row
    assert f" {plan.regions[17].samples_per_second:,.0f} " in row
    assert "Micro-batches tried" not in text


def test_an_estimate_says_how_far_it_may_be_off():
    plan = streaming_plan()
    loose = plan.model_copy(update={"trust": UNCALIBRATED})
    assert "(uncalibrated)" in report_text(report_of(loose))
    assert "Nothing like it was measured." in report_page(loose, report_of(loose))
    assert error_band(plan.trust) == "off by 3.7% in the mean, 12.8% at worst"


def test_a_micro_batch_is_as_long_as_its_layers():
    plan = streaming_plan(3)
    spans = micro_batch_spans(plan)
    assert max(span.end_cycles for span in spans) == sum(layer.total_cycles for layer in plan.layers)
    compute = [span for span in spans if span.lane == Lane.COMPUTE]
    assert [(span.layer, span.phase) for span in compute] == [
        *((index, Phase.FORWARD) for index in range(5)),
        *((index, Phase.BACKWARD) for index in reversed(range(5))),
    ]
    for before, after in pairwise(compute):
        assert after.start_cycles >= before.end_cycles
    streamed = [span for span in spans if span.lane in (Lane.WEIGHTS_IN, Lane.GRADIENTS_OUT)]
    for before, after in pairwise(streamed):
        assert after.start_cycles >= before.end_cycles


def test_a_sample_passes_the_regions_forward_and_back():
    plan = pipelined_plan(2)
    visits = sample_visits(plan)
    there = [visit.region for visit in visits if visit.phase == Phase.FORWARD]
    back = [visit.region for visit in visits if visit.phase == Phase.BACKWARD]
    assert there == list(range(10))
    assert sorted(back) == there
    assert max(visit.end_cycles for visit in visits) == pytest.approx(sum(region.cycles for region in plan.regions))
    in_order = sorted(visits, key=lambda visit: visit.start_cycles)
    for before, after in pairwise(in_order):
        assert after.start_cycles == pytest.approx(before.end_cycles)


def test_a_region_begins_as_soon_as_the_step_of_the_plan_says():
    plan = pipelined_plan(2)
    slowest = max(region.cycles for region in plan.regions)
    way = sum(region.cycles for region in plan.regions)
    for waited in (0.5, 0.1):
        visits = sample_visits(plan.model_copy(update={"step_cycles": 63 * slowest + round(waited * way)}))
        assert max(visit.end_cycles for visit in visits) == pytest.approx(waited * way, rel=0.03)
        assert sum(visit.end_cycles - visit.start_cycles for visit in visits) == pytest.approx(way)


def test_regions_beside_each_other_work_at_the_same_time():
    plan = pipelined_plan(1)
    first, *middle, last = [region.name for region in plan.regions]
    way = plan.routes[0]
    fan = [way.model_copy(update={"source": first, "target": name}) for name in middle]
    fan += [way.model_copy(update={"source": name, "target": last}) for name in middle]
    visits = sample_visits(plan.model_copy(update={"routes": fan}))
    starts = {visit.region: visit.start_cycles for visit in visits if visit.phase == Phase.FORWARD}
    ends = {visit.region: visit.end_cycles for visit in visits if visit.phase == Phase.FORWARD}
    assert {starts[index] for index in (1, 2, 3)} == {ends[0]}
    assert starts[4] == max(ends[index] for index in (1, 2, 3))
    assert max(visit.end_cycles for visit in visits) < sum(region.cycles for region in plan.regions)


def test_time_in_no_layer_is_told():
    plan = streaming_plan()
    plan = plan.model_copy(update={"step_cycles": plan.step_cycles + 8_500_000})
    report = report_of(plan)
    assert report.outside_layers_seconds == pytest.approx(0.01)
    assert "; 10.00 ms of it in no layer: fixed time and waiting for the input" in report_text(report)


@pytest.mark.parametrize("plan", [streaming_plan(), pipelined_plan()], ids=["streaming", "pipelined"])
def test_the_page_is_one_file_that_names_nothing_to_fetch(plan):
    page = report_page(plan, report_of(plan))
    assert not re.search(r"https?://", page)
    assert not re.search(r"\b(?:src|href)\s*=\s*[\"'](?!#)", page)
    assert "@import" not in page
    assert "url(" not in page


def test_the_page_carries_the_plan():
    plan = pipelined_plan()
    data = data_of(report_page(plan, report_of(plan)))
    assert [(r["name"], r["x"], r["y"], r["width"], r["height"]) for r in data["regions"]] == [
        (r.name, r.column, r.row, r.width, r.height) for r in plan.regions
    ]
    assert len(data["routes"]) == len(plan.routes)
    streaming = streaming_plan(96)
    data = data_of(report_page(streaming, report_of(streaming)))
    assert [layer["total_cycles"] for layer in data["layers"]] == [layer.total_cycles for layer in streaming.layers]
    assert len(data["kernels"]["rows"]) == 2 * 20 + 2 * 2


def test_a_name_cannot_leave_its_place_in_the_page():
    hostile = "</script><img src=x onerror=alert(1)>"
    plan = streaming_plan(1)
    odd = kernel(f"forward.{hostile}", "head", Phase.FORWARD).model_copy(update={"module": hostile, "source": hostile})
    warning = plan.warnings[0].model_copy(update={"message": hostile, "file": hostile, "module": hostile})
    plan = plan.model_copy(update={"kernels": [*plan.kernels, odd], "warnings": [warning], "mode_reason": hostile})
    page = report_page(plan, report_of(plan))
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert data_of(page)["kernels"]["rows"][-1][1] == hostile
    assert unescape(page).count(hostile) >= 4


def test_a_long_model_makes_a_small_page():
    deep: Plan = streaming_plan(96, 60)
    assert len(report_page(deep, report_of(deep))) < 400_000
    different = deep.model_copy(
        update={"layers": [layer.model_copy(update={"planned_as": layer.name}) for layer in deep.layers]}
    )
    assert len(report_page(different, report_of(different))) < 3_000_000


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (readable_seconds(0), "0"),
        (readable_seconds(2.5e-9), "2.5 ns"),
        (readable_seconds(1.23456e-3), "1.235 ms"),
        (readable_seconds(78.9912), "78.99 s"),
        (readable_size(1_250_000), "1.25 MB"),
        (readable_sram(49152), "48.0 KiB"),
        (readable_count(124_400_000), "124.4 M"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected
