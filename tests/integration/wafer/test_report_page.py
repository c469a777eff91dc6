"""report.html in a real browser: what is drawn is what was planned, and nothing in a name does harm."""

from collections.abc import Iterator

import pytest
from tests.fixtures.plans import pipelined_plan, report_of, streaming_plan
from tests.integration.wafer.browser import CHROMIUM, Browser, browser

from cerebras_contract.plans import Plan
from cerebras_wafer.compiler.report.page import report_page

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the report page is not looked at"),
]
HOSTILE = "</script><img src=x onerror=document.title='taken'>"
BOXES = """
(() => {
  const box = (element) => { const b = element.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  return {
    fabric: box(document.querySelector('.fabric')),
    regions: [...document.querySelectorAll('.region')].map((r) => [r.dataset.region, +r.dataset.pes, ...box(r)]),
  };
})()
"""
SHARES = """
[...document.querySelectorAll('.share')].map((s) => [s.dataset.share, +s.dataset.bytes, +s.getAttribute('height')])
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def show(tab, tmp_path):
    def open_page(plan: Plan) -> Browser:
        page = tmp_path / "report.html"
        page.write_text(report_page(plan, report_of(plan)), encoding="utf-8")
        tab.open(page)
        return tab

    return open_page


def texts(tab: Browser, selector: str) -> list[str]:
    found: list[str] = tab.evaluate(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)")
    return found


@pytest.mark.parametrize("plan", [pipelined_plan(), streaming_plan(96, 60)], ids=["pipelined", "streaming"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(show, plan):
    tab = show(plan)
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.endswith("/report.html")] == []


def test_each_region_is_a_rectangle_on_the_fabric_as_large_as_its_elements(show):
    plan = pipelined_plan()
    drawn = show(plan).evaluate(BOXES)
    left, top, right, bottom = drawn["fabric"]
    a_pe = (right - left) * (bottom - top) / (plan.fabric_columns * plan.fabric_rows)
    expected = {region.name: region for region in plan.regions}
    assert {name for name, *_ in drawn["regions"]} == set(expected)
    assert len(drawn["regions"]) == len(plan.regions)
    for name, pes, x1, y1, x2, y2 in drawn["regions"]:
        region = expected[name]
        assert pes == region.processing_elements
        assert (x2 - x1) * (y2 - y1) == pytest.approx(pes * a_pe, rel=0.01)
        assert (x1 - left) / (right - left) == pytest.approx(region.column / plan.fabric_columns, abs=0.002)
        assert (y1 - top) / (bottom - top) == pytest.approx(region.row / plan.fabric_rows, abs=0.002)
        assert x2 <= right + 0.5
        assert y2 <= bottom + 0.5


def test_pointing_at_a_region_tells_its_numbers_and_picking_it_shows_them(show):
    plan = pipelined_plan()
    tab, region = show(plan), plan.regions[7]
    selector = f"[data-region='{region.name}']"
    tab.point_at(selector, click=True)
    assert tab.evaluate("document.getElementById('tip').hidden") is False
    tip = tab.evaluate("document.getElementById('tip').innerText")
    assert region.name in tip
    assert f"{region.processing_elements:,} PEs" in tip
    assert f"{region.cycles:,} cycles a sample" in tip
    assert "14 KiB of 48 KiB" in tip
    assert tab.evaluate(f"document.querySelector(\"{selector}\").getAttribute('aria-label')").startswith(region.name)
    assert texts(tab, "#details h3") == [region.name]
    assert tab.evaluate("document.querySelector('#parts-table tr.current td').textContent") == region.name


def test_the_colours_say_the_kind_then_the_use_then_the_memory(show):
    tab = show(pipelined_plan())
    colours = "[...document.querySelectorAll('.region')].map((r) => r.getAttribute('fill'))"
    seen = [tab.evaluate(colours)]
    for index in (1, 2):
        tab.point_at("#wafer-controls .switch button", index, click=True)
        seen.append(tab.evaluate(colours))
    assert [len(set(fills)) for fills in seen] == [4, 6, len(pipelined_plan().regions)]
    assert "48 KiB a PE" in texts(tab, "#wafer-legend")[0]


def test_arrow_keys_go_from_region_to_region_and_enter_picks(show):
    plan = pipelined_plan()
    tab = show(plan)
    tab.evaluate("document.querySelector('.region[tabindex=\"0\"]').focus()")
    at = "document.activeElement.dataset.region"
    assert tab.evaluate(at) == plan.regions[0].name
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.evaluate(at) == plan.regions[2].name
    tab.press("Enter")
    assert texts(tab, "#details h3") == [plan.regions[2].name]
    tab.press("ArrowLeft")
    assert tab.evaluate(at) == plan.regions[1].name
    assert len(tab.evaluate("[...document.querySelectorAll('.region[tabindex=\"0\"]')].map(() => 1)")) == 1


def test_a_layer_of_weight_streaming_fills_the_wafer_by_its_memory(show):
    plan = streaming_plan()
    tab = show(plan)
    drawn = tab.evaluate(SHARES)
    assert [name for name, *_ in drawn] == ["free", "weights", "activations"] * 2
    whole = 49152
    for at, used in ((0, plan.layers[0].forward_sram_bytes_per_pe), (3, plan.layers[0].backward_sram_bytes_per_pe)):
        free, weights, activations = (bytes_ for _, bytes_, _ in drawn[at : at + 3])
        assert free == whole - used
        assert weights + activations == pytest.approx(used, abs=1)
        assert drawn[at][2] / sum(height for *_, height in drawn[at : at + 3]) == pytest.approx(free / whole, rel=0.01)


def test_the_timeline_has_each_layer_forward_and_backward_and_shows_what_is_picked(show):
    plan = streaming_plan()
    tab = show(plan)
    labels = tab.evaluate("[...document.querySelectorAll('.slot')].map((s) => s.getAttribute('aria-label'))")
    names = [layer.name for layer in plan.layers]
    assert [label.split(", ")[0] for label in labels] == names + names[::-1]
    assert "compute 1.06 ms" in labels[0]
    assert "gradients out 1.76 ms" in labels[-1]
    tab.point_at(".slot", 3, click=True)
    assert texts(tab, "#details h3") == ["blocks.2"]
    assert "one of 12 alike" in texts(tab, "#details .kind")[0]


def test_tables_sort_and_filter(show):
    tab = show(streaming_plan())
    cells = "[...document.querySelectorAll('#kernels-table tbody tr')].map((r) => r.children[3].textContent)"
    tab.point_at("#kernels-table thead button", 0, click=True)
    names = texts(tab, "#kernels-table tbody td:first-child")
    assert names[0].startswith("backward.blocks.0.attention")
    assert tab.evaluate("document.querySelector('#kernels-table th').getAttribute('aria-sort')") == "ascending"
    tab.evaluate(
        "(() => { const box = document.querySelector('#kernels-controls input'); box.value = 'tokens';"
        " box.dispatchEvent(new Event('input')); })()"
    )
    assert len(tab.evaluate(cells)) == 2


@pytest.mark.parametrize("make", [pipelined_plan, None], ids=["pipelined", "streaming"])
def test_a_hostile_name_is_text(show, make):
    plan = make(2, HOSTILE) if make else streaming_plan(2)
    kernels = [kernel.model_copy(update={"module": HOSTILE, "source": f"{HOSTILE}.py:3"}) for kernel in plan.kernels]
    warnings = [warning.model_copy(update={"message": HOSTILE, "file": HOSTILE}) for warning in plan.warnings]
    tab = show(plan.model_copy(update={"kernels": kernels, "warnings": warnings, "mode_reason": HOSTILE}))
    assert tab.evaluate("document.title").startswith("Compile report")
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert tab.evaluate("document.querySelectorAll('script').length") == 2
    assert texts(tab, ".warnings li > p:first-child") == [HOSTILE]
    assert HOSTILE in texts(tab, "#kernels-table td.name")[0]
    assert tab.complaints == []
