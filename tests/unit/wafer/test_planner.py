"""Planning again: combinations as rows, their table and JSON, and a saved artifact without its script."""

import json
import shutil
from pathlib import Path

import pytest
from tests.fixtures.training import Network, compiled

from cerebras_contract.errors import ReportedError
from cerebras_contract.planning import PassName, PlanRow
from cerebras_contract.plans import CandidatePlan, Mode, PlanWarning
from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.systems import load_system
from cerebras_wafer import cli
from cerebras_wafer.compiler.emit import write_artifact
from cerebras_wafer.compiler.ir.text import parse_graph, print_graph
from cerebras_wafer.planner.compare import Combination, compare
from cerebras_wafer.planner.options import PlanChoices
from cerebras_wafer.planner.table import HEADER, as_json, as_text
from cerebras_wafer.simulator.profile import chrome_trace

KEYS = (
    "system, num_csx, batch, mode, fits, reason, micro_batch, samples_per_second, utilization, bound, step_seconds,"
    " system_hours, calibrated, error_band"
)


@pytest.fixture(scope="module")
def made():
    return compiled()


@pytest.fixture(scope="module")
def made_of_16():
    return compiled(batch_size=16)


@pytest.fixture(scope="module")
def artifact_folder(made, tmp_path_factory):
    folder = RunDirectory(tmp_path_factory.mktemp("run")).compile
    write_artifact(made, folder, input_key="input", ingredients={})
    return str(folder)


def combinations(made, max_steps=None, **choices) -> list[Combination]:
    return compare(made.graph, made.options, PlanChoices(**choices), max_steps, pytest.fail)


def rows(made, max_steps=None, **choices) -> list[PlanRow]:
    return [combination.row for combination in combinations(made, max_steps, **choices)]


def test_without_choices_the_row_is_the_plan_that_was_compiled(made):
    (row,) = rows(made)
    plan, report = made.plan, made.report
    assert (row.system, row.num_csx, row.batch, row.mode) == (plan.system, plan.num_csx, plan.batch_size, plan.mode)
    assert (row.step_seconds, row.samples_per_second) == (plan.step_seconds, plan.samples_per_second)
    assert (row.utilization, row.micro_batch) == (pytest.approx(report.compute_utilization), plan.micro_batch)
    assert (row.reason, row.bound, row.system_hours) == (plan.mode_reason, plan.bound, None)
    assert (row.calibrated, row.error_band) == (plan.trust.calibrated, plan.trust.worst_error)


def test_a_row_has_exactly_the_documented_keys():
    assert ", ".join(PlanRow.model_fields) == KEYS


def test_every_combination_is_a_row_system_by_system(made):
    found = rows(made, systems=("cs-3", "cs-2"), num_csx=(1, 2), batches=(8, 16))
    expected = [(system, n, b) for system in ("cs-3", "cs-2") for n in (1, 2) for b in (8, 16)]
    assert [(row.system, row.num_csx, row.batch) for row in found] == expected
    assert all(row.fits for row in found)


@pytest.mark.parametrize("mode", ["weight_streaming", "pipelined"])
def test_another_batch_is_planned_as_if_it_had_been_captured(made, made_of_16, mode):
    (row,), (wanted,) = rows(made, batches=(16,), mode=mode), rows(made_of_16, mode=mode)
    assert (row.batch, row.fits, row.micro_batch, row.bound) == (16, True, wanted.micro_batch, wanted.bound)
    # In so small a model it counts that a kernel's results that do not grow, as a bias's gradient, are scaled with it.
    assert row.step_seconds == pytest.approx(wanted.step_seconds, rel=0.05)
    assert row.utilization == pytest.approx(wanted.utilization, rel=0.05)


def test_system_hours_are_those_of_all_steps_and_systems(made):
    one, two = rows(made, max_steps=100, num_csx=(1, 2))
    assert one.system_hours == pytest.approx(100 * one.step_seconds / 3600)
    assert two.system_hours == pytest.approx(100 * two.step_seconds / 3600 * 2)


def test_steps_that_are_chosen_win_over_those_of_the_script(made):
    choices = PlanChoices(max_steps=200)
    (chosen,) = compare(made.graph, made.options, choices, 100, pytest.fail)
    (of_script,) = rows(made, max_steps=100)
    assert chosen.row.system_hours == pytest.approx(2 * of_script.system_hours)


def test_what_cannot_be_divided_is_a_row_with_its_reason(made):
    fits, refused = rows(made, num_csx=(1, 3))
    assert (fits.fits, refused.fits) == (True, False)
    assert "8 samples cannot be divided evenly among 3 systems" in refused.reason
    assert {name for name, value in refused if value is None} == set(KEYS.split(", ")[6:]) | {"mode"}


def test_a_mode_that_is_asked_for_is_named_also_where_it_does_not_fit(made):
    (refused,) = rows(made, mode="weight_streaming", num_csx=(3,))
    assert refused.mode == "weight_streaming"


def test_a_system_of_ones_own_is_a_row_by_its_name(made, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text(f"like: cs-2\nclock_hz: {2 * load_system('cs-2').clock_hz}\n")
    slow, fast = rows(made, systems=("cs-2", str(path)))
    assert fast.system == "twice"
    assert fast.step_seconds <= slow.step_seconds


def test_a_system_that_cannot_be_read_is_an_error_not_a_row(made):
    with pytest.raises(ReportedError, match="cannot read the system none.yaml"):
        rows(made, systems=("none.yaml",))


def test_the_plan_of_each_combination_can_be_printed(made):
    shown: list[str] = []
    choices = PlanChoices(num_csx=(1, 2), print_after=PassName.PLAN)
    compare(made.graph, made.options, choices, None, shown.append)
    assert [json.loads(text)["num_csx"] for text in shown] == [1, 2]


def test_the_table_has_a_line_a_row_and_a_paragraph_a_reason(made):
    text = as_text(combinations(made, max_steps=100_000, systems=("cs-2", "cs-3"), num_csx=(1, 3)))
    table, *paragraphs = text.split("\n\n")
    lines = table.splitlines()
    assert lines[0].split() == [*HEADER]
    assert [line.split()[:2] for line in lines[1:]] == [["cs-2", "1"], ["cs-2", "3"], ["cs-3", "1"], ["cs-3", "3"]]
    (reason,) = [paragraph for paragraph in paragraphs if paragraph.startswith("Does not fit: ")]
    assert reason.splitlines()[1:] == ["  3 x cs-2, batch 8", "  3 x cs-3, batch 8"]


def test_the_table_says_the_error_band_or_that_there_is_none(made):
    (combination,) = combinations(made)
    measured = combination.row.model_copy(update={"calibrated": True, "error_band": 0.125})
    unmeasured = combination.row.model_copy(update={"calibrated": False, "error_band": None})
    assert "within 12%" in as_text([Combination(measured)])
    assert "uncalibrated" in as_text([Combination(unmeasured)])


def test_a_warning_is_told_once_and_of_many_the_first(made):
    (combination,) = combinations(made)
    warnings = tuple(PlanWarning(code="alignment", message=f"warning {n}") for n in range(12))
    told = Combination(combination.row, warnings=warnings)
    (paragraph,) = [part for part in as_text([told, told]).split("\n\n") if part.startswith("Warnings:")]
    assert len(paragraph.splitlines()) == 12
    assert paragraph.count("warning 3 ") == 1
    assert paragraph.endswith("and 2 more")


def test_the_candidates_of_a_micro_batch_are_listed(made):
    (combination,) = combinations(made)
    tried = [
        CandidatePlan(
            micro_batch=size,
            step_seconds=1 / size,
            samples_per_second=8.0 * size,
            activations_bytes=10**9 * size,
            spilled_bytes=0,
            chosen=size == 8,
        )
        for size in (4, 8)
    ]
    text = as_text([Combination(combination.row, candidates=tuple(tried))])
    assert f"Micro-batches of 1 x cs-2, batch 8, {made.plan.mode.words}:" in text
    (chosen,) = [line for line in text.splitlines() if line.endswith("chosen")]
    assert chosen.split()[0] == "8"
    assert chosen.split()[-5:] == ["8.00", "GB", "0.00", "GB", "chosen"]


def test_json_is_a_list_of_rows(made):
    read = json.loads(as_json(combinations(made, num_csx=(1, 3))))
    assert [PlanRow.model_validate(row) for row in read] == rows(made, num_csx=(1, 3))


def test_a_saved_artifact_is_planned_without_its_script(made, artifact_folder, capsys):
    assert cli.main(["plan", artifact_folder, "--num-csx", "1,2", "--batch", "8,16", "--json"]) == 0
    read = [PlanRow.model_validate(row) for row in json.loads(capsys.readouterr().out)]
    assert read == rows(made, num_csx=(1, 2), batches=(8, 16))


def test_show_prints_the_kernel_graph_and_its_summary(made, artifact_folder, capsys):
    assert cli.main(["show", artifact_folder]) == 0
    assert parse_graph(capsys.readouterr().out) == made.graph
    assert cli.main(["plan", artifact_folder, "--print-after", "fuse"]) == 0
    assert capsys.readouterr().out.startswith(print_graph(made.graph))
    assert cli.main(["show", artifact_folder, "--summary"]) == 0
    assert f"{made.key}: batch 8, float32, compiled for 1 x cs-2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--print-after", "partition"], "an artifact does not hold what pass partition left"),
        (["--system", "none.yaml"], "cannot read the system none.yaml"),
    ],
)
def test_what_an_artifact_cannot_answer_is_said(artifact_folder, capsys, words, said):
    assert cli.main(["plan", artifact_folder, *words]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "8,x"], "argument --batch: expected whole numbers above 0, as in 64,128, not '8,x'"),
        (["--system", "cs-9"], "there is no system 'cs-9' (Choose one of: cs-1, cs-2, cs-3, tiny"),
        (["--mode", "fast"], "argument --mode: expected one of auto, weight_streaming"),
        (["--micro-batch", "0"], "argument --micro-batch: expected auto, explore or a whole number above 0, not '0'"),
        (["--max-steps", "1,2"], "argument --max-steps: expected whole numbers above 0"),
    ],
)
def test_wrong_usage_is_said_in_our_words(artifact_folder, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", artifact_folder, *words])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_is_no_artifact_or_is_damaged_is_said(artifact_folder, tmp_path, capsys):
    assert cli.main(["show", str(tmp_path)]) == 1
    assert f"there is no readable artifact in {tmp_path}" in capsys.readouterr().err
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("manifest.json", "kernels.txt"):
        shutil.copy(Path(artifact_folder) / name, copy)
    (copy / "kernels.txt").write_text("graph")
    assert cli.main(["show", str(copy)]) == 1
    assert "kernels.txt is missing or damaged" in capsys.readouterr().err


def test_a_profile_of_steps_is_written_for_perfetto(made, artifact_folder, tmp_path, capsys):
    file = tmp_path / "trace.json"
    assert cli.main(["profile", artifact_folder, "--steps", "2:3", "--output", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
    assert json.loads(file.read_text()) == chrome_trace(made.plan, 2, 3)


def test_a_profile_that_cannot_be_made_is_said(artifact_folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["profile", artifact_folder, "--steps", "3:2"])
    assert "expected FIRST:LAST, as in 3:5, not '3:2'" in capsys.readouterr().err
    assert cli.main(["profile", str(tmp_path)]) == 1
    assert "there is no readable plan at" in capsys.readouterr().err
    assert cli.main(["profile", artifact_folder, "--output", str(tmp_path / "none" / "trace.json")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_what_exceeds_the_wafer_sample_by_sample_does_not_fit():
    """The smallest system holds no layer of this network even for one sample."""
    (row,) = rows(compiled(Network(width=20_000), system="tiny", mode=Mode.WEIGHT_STREAMING))
    assert not row.fits
    assert "even 1 sample does not fit" in row.reason
    assert row.samples_per_second is None


def test_rows_of_different_modes_say_why(made):
    text = as_text(combinations(made, num_csx=(1, 2)))
    assert "pipelined, 1 system: the estimate is" in text
    assert "weight streaming, 2 systems: it runs on 2 systems, pipelined on one" in text
