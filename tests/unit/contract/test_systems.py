"""Systems as data: the figures, and a user's own spec from a file."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_contract.planning import PlanRow
from cerebras_contract.systems import SystemSpec, is_system_file, load_system, system_names

FOLDER = files("cerebras_contract") / "data" / "systems"


def own(folder, text: str, name: str = "my-wse4.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def error_of(system: str):
    with pytest.raises(ReportedError) as caught:
        load_system(system)
    report = caught.value.report
    assert report.code is ErrorCode.CONFIG_INVALID
    return report


@pytest.mark.parametrize(
    ("name", "processing_elements", "peak_petaflops"), [("cs-2", 745_500, 5.07), ("cs-3", 893_064, 12.5)]
)
def test_the_figures_of_a_system_reproduce_its_published_grid_and_peak(name, processing_elements, peak_petaflops):
    spec = load_system(name)
    assert spec.processing_elements == processing_elements
    assert spec.half_flops_per_second / 1e15 == pytest.approx(peak_petaflops, rel=0.01)


@pytest.mark.parametrize("name", ["cs-1", "cs-2", "cs-3"])
def test_modelled_and_marketed_figures_differ_by_what_is_known_of_them(name):
    spec = load_system(name)
    assert spec.marketed.cores
    assert spec.marketed.sram_bytes
    assert 0.8 < spec.processing_elements / spec.marketed.cores < 1
    assert 0.85 < spec.sram_bytes / spec.marketed.sram_bytes < 1.05
    # Two 64-bit reads and a 64-bit write a cycle and PE are 24 B: the announced bandwidths are of that order.
    assert 0.5 < spec.sram_bytes_per_second / (24 * spec.pe_cycles_per_second) < 1.5
    # 32 bit a cycle over each of four links and the ramp, each way.
    assert 0.5 < spec.fabric_bytes_per_second / (10 * 4 * spec.pe_cycles_per_second) < 1.5


@pytest.mark.parametrize("name", system_names())
def test_every_number_has_its_source_beside_it(name):
    text = (FOLDER / f"{name}.yaml").read_text()
    if name == "tiny":
        assert "all figures are chosen" in text
        return
    numbers = re.findall(r"^ *\w+: +\d[^#\n]*(#.*)?$", text, re.MULTILINE)
    assert len(numbers) > 12
    assert all(numbers)


@pytest.mark.parametrize(("page", "model"), [("configuration", SystemSpec), ("planning", PlanRow)])
def test_every_key_is_documented(page, model):
    text = (Path(__file__).parents[3] / "docs" / f"{page}.md").read_text()
    assert [name for name in model.model_fields if f"`{name}`" not in text] == []


def test_an_unknown_system_names_the_known_ones():
    assert system_names() == ["cs-1", "cs-2", "cs-3", "tiny"]
    report = error_of("cs-9")
    assert "cs-1, cs-2, cs-3, tiny" in report.advice


def test_a_name_is_no_file_and_a_file_is_no_name():
    assert [is_system_file(name) for name in ("cs-2", "wse.yaml", "specs/wse.yml", "yaml")] == [
        False, True, True, False,
    ]  # fmt: skip


def test_a_spec_of_ones_own_takes_what_it_does_not_say_from_another(tmp_path):
    spec = load_system(own(tmp_path, "like: cs-3\nfabric_rows: 2344\nmarketed:\n  cores: 2000000\n"))
    cs3 = load_system("cs-3")
    assert (spec.name, spec.like, spec.engine) == ("my-wse4", "cs-3", "like cs-3")
    assert (spec.fabric_rows, spec.fabric_columns) == (2344, cs3.fabric_columns)
    assert spec.processing_elements == 2 * cs3.processing_elements
    assert spec.memory_options_bytes == cs3.memory_options_bytes
    assert (spec.marketed.cores, spec.marketed.sram_bytes) == (2_000_000, None)  # nothing is announced of it


def test_a_spec_of_ones_own_may_say_everything(tmp_path):
    text = (FOLDER / "cs-2.yaml").read_text().replace("name: cs-2", "name: other")
    spec = load_system(own(tmp_path, text))
    assert spec == load_system("cs-2").model_copy(update={"name": "other"})


def test_a_file_that_changed_is_read_again(tmp_path):
    path = own(tmp_path, "like: cs-3\nfabric_rows: 10\n")
    assert load_system(path).fabric_rows == 10
    assert load_system(own(tmp_path, "like: cs-3\nfabric_rows: 11\n")).fabric_rows == 11


@pytest.mark.parametrize(
    ("text", "line", "message", "advice"),
    [
        ("like: cs-3\nfabric_row: 9\n", 2, "unknown key 'fabric_row'", "Did you mean 'fabric_rows'?"),
        ("like: cs-3\nmarketed:\n  core: 9\n", 3, "unknown key 'marketed.core'", "Did you mean 'cores'?"),
        ("like: cs-3\ncores: 9\n", 2, "unknown key 'cores'", "'cores' belongs under 'marketed'."),
        ("like: cs-3\nfabric_rows: many\n", 2, "fabric_rows: should be a valid integer", None),
        ("like: cs-3\nfabric_rows: '9'\n", 2, "fabric_rows: should be a valid integer", None),
        ("like: cs-3\nfabric_rows: 0\n", 2, "fabric_rows: should be greater than 0", None),
        ("like: cs-3\nclock_hz: .inf\n", 2, "clock_hz: should be a finite number", None),
        ("like: cs-9\n", 1, "like: there is no system 'cs-9'", "Choose one of: cs-1, cs-2, cs-3, tiny."),
        ("like: cs-3\nname: cs-3\n", 2, "the name 'cs-3' is taken", "Give it a name of its own: `name: ...`."),
        ("like: cs-3\nname: a name\n", 2, "name: String should match", None),
        ("like: cs-3\nidle_watts: 1e6\n", 1, "idle_watts 1e+06 is above full_load_watts 23000", None),
        ("fabric_rows: 9\n", 1, "engine is missing (and", "`like: cs-3` takes from there what the file does not say."),
        ("- a\n", 1, "the file must be a mapping with keys such as name, like, engine", None),
        ("", 1, "the file must be a mapping", None),
        ("like: [", 1, "", None),
        ("like: cs-3\nlike: cs-2\n", 2, "duplicate key", None),
    ],
)  # fmt: skip
def test_a_fault_of_a_spec_is_placed(tmp_path, text, line, message, advice):
    path = own(tmp_path, text)
    report = error_of(path)
    assert (report.file, report.line, report.advice) == (path, line, advice)
    assert message in report.message


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error_of("no-such.yaml").message == "cannot read the system no-such.yaml: No such file or directory"


def test_a_spec_survives_json():
    spec = load_system("cs-3")
    assert SystemSpec.model_validate_json(spec.model_dump_json()) == spec
