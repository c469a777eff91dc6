"""The command line: what it prints where, exit statuses, and no traceback."""

import csv
import io
import json
import re
import shlex

import pytest
from tests.unit.client.stand_in import API_KEY, JOB_ID, job_view, story

from cerebras_cloud.bundles import Bundles
from cerebras_cloud.cli.jobs import current_stage
from cerebras_cloud.cli.output import command_line, readable_duration
from cerebras_cloud.cli.overrides import effective_configuration
from cerebras_cloud.errors import BadInput, ExitCode, exit_code_of
from cerebras_contract.cluster import API_KEY_VARIABLE, URL_VARIABLE
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.jobs import StageView
from cerebras_contract.states import JobStatus, StageKind, StageStatus

LOG = b"epoch 1\nloss 0.5\n\xff\x00 not text, and no newline at the end"
RAISED = ErrorReport(code=ErrorCode.SCRIPT_RAISED, message="ValueError: no luck", file="train.py", line=2)


@pytest.mark.parametrize(
    ("status", "code"), [(JobStatus.SUCCEEDED, 0), (JobStatus.FAILED, 1), (JobStatus.CANCELLED, 130)]
)
def test_follow_shows_the_log_as_it_is_and_exits_as_the_job_does(
    connected, stand_in, command, capfdbinary, status, code
):
    error = RAISED if status is JobStatus.FAILED else None
    stand_in.events = story(LOG, job_view(status, error))
    assert command("follow", JOB_ID) == code
    printed = capfdbinary.readouterr()
    assert printed.out == LOG
    said = printed.err.decode()
    assert f"{JOB_ID} {status} after 10s, 3 steps" in said
    assert re.search(r"^  loss 0\.\d+ \(step \d+\)$", said, re.MULTILINE)
    assert ("error: train.py:2: ValueError: no luck [script.raised]" in said) == (error is not None)
    assert "\x1b" not in said  # no terminal, no control characters


def test_the_checkpoint_command_of_the_summary_works(connected, stand_in, command, capfd, tmp_path, monkeypatch):
    stand_in.events = story(LOG, job_view(JobStatus.SUCCEEDED))
    stand_in.files = {"model.safetensors": b"weights"}
    command("follow", JOB_ID)
    printed = re.search(r"checkpoints of step 2, 3: cerebras-cloud (.*)", capfd.readouterr().err)
    monkeypatch.chdir(tmp_path)
    assert command(*shlex.split(printed[1])) == 0
    assert capfd.readouterr().out == "checkpoints/step_3\n"
    assert (tmp_path / "checkpoints" / "step_3" / "model.safetensors").read_bytes() == b"weights"


def test_a_fault_is_sent_once_though_its_answer_was_lost(connected, stand_in, command, capfd):
    stand_in.faults.append(503)
    assert command("fault", JOB_ID, "slow_link", "--factor", "8", "--steps", "20") == 0
    assert capfd.readouterr().out == f"{JOB_ID} is running\n"
    assert list(stand_in.sent_faults.values()) == ['{"kind":"slow_link","factor":8.0,"steps":20}']


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("slow_link",), "error: slow_link needs factor."),
        (("lose_system", "--count", "3"), "error: lose_system takes no count."),
        (("defects", "--count", "0"), "error: --count: Input should be greater than 0."),
    ],
)
def test_a_fault_that_is_none_is_told_before_anything_is_sent(connected, stand_in, command, capfd, words, told):
    assert command("fault", JOB_ID, *words) == ExitCode.BAD_INPUT
    assert told in capfd.readouterr().err
    assert not stand_in.requests


def test_logs_that_are_followed_hold_nothing_else(connected, stand_in, command, capfdbinary):
    stand_in.events = story(LOG, job_view(JobStatus.SUCCEEDED))
    assert command("logs", "-f", JOB_ID) == 0
    assert capfdbinary.readouterr() == (LOG, b"")


def test_submit_detached_prints_the_id_alone(connected, stand_in, command, capfd, tmp_path):
    (tmp_path / "train.py").write_text("print()")
    words = ("--max-steps", "7", "--set", "runconfig.max_steps=5", "--set", "train_input.epochs=2")
    assert command("submit", str(tmp_path / "train.py"), *words, "--detach", "--", "--depth", "3") == 0
    printed = capfd.readouterr()
    assert printed.out == f"{JOB_ID}\n"
    assert f"cerebras-cloud follow {JOB_ID}" in printed.err
    (spec,) = stand_in.specs.values()
    assert spec.arguments == ["--depth", "3"]
    assert spec.configuration.runconfig.max_steps == 7
    assert spec.configuration.said()["train_input"] == {"epochs": 2}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--version",), 0),
        (("--help",), 0),
        (("submit",), 2),
        (("no-such-command",), 2),
        (("submit", "no-such.py"), 2),
        (("submit", "x.py", "--set", "nothing"), 2),
        (("checkpoint", "download", JOB_ID, "--step", "last"), 2),
        (("checkpoint", "download", JOB_ID), 2),
        (("jobs", "show", "job-9"), 4),
        (("jobs", "list", "--home", "/nowhere"), 5),
    ],
)
def test_exit_statuses(connected, command, capfd, words, code):
    assert command(*words) == code
    assert "Traceback" not in capfd.readouterr().err


def test_a_wrong_key_has_its_exit_status_and_is_not_shown(connected, command, capfd, monkeypatch):
    monkeypatch.setenv(API_KEY_VARIABLE, "wrong-key")
    assert command("jobs", "show", JOB_ID) == 3
    said = capfd.readouterr().err
    assert "this API key is not known" in said
    assert "wrong-key" not in said


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.AUTHENTICATION_FAILED, ExitCode.AUTHENTICATION),
        (ErrorCode.NOT_FOUND, ExitCode.NOT_FOUND),
        (ErrorCode.CONFIG_INVALID, ExitCode.BAD_INPUT),
        (ErrorCode.CONFLICT, ExitCode.BAD_INPUT),
        (ErrorCode.INTERNAL, ExitCode.FAILED),
        (ErrorCode.WORKER_LOST, ExitCode.FAILED),
    ],
)
def test_a_refusal_has_the_exit_status_of_who_can_mend_it(code, status):
    assert exit_code_of(ErrorReport(code=code, message="")) is status


def test_a_bug_of_ours_is_one_line_and_a_traceback_only_when_asked_for(
    connected, command, capfd, monkeypatch, tmp_path
):
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(Bundles, "find", lambda *_: 1 // 0)
    monkeypatch.setenv("CEREBRAS_CLOUD_DEBUG", "")
    assert command("submit", str(tmp_path / "train.py")) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("unexpected ZeroDivisionError")
    assert command("--debug", "submit", str(tmp_path / "train.py")) == 1
    said = capfd.readouterr().err
    assert "Traceback" in said
    assert API_KEY not in said


def test_the_not_running_error_is_one_line(command, capfd):
    assert command("jobs", "list") == 5
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("Start one: cerebras-cloud up --detach")


def test_metrics_are_exact(connected, stand_in, command, capfd):
    values = {"nan": float("nan"), "inf": float("inf"), "tenth": 0.1, "tiny": 5e-324}
    stand_in.metrics = values
    assert command("metrics", JOB_ID, "-o", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert {row["name"]: repr(float(row["value"])) for row in rows} == {n: repr(v) for n, v in values.items()}
    assert command("metrics", JOB_ID, "-o", "json") == 0
    points = json.loads(capfd.readouterr().out)
    assert {p["name"]: repr(float(p["value"])) for p in points} == {n: repr(v) for n, v in values.items()}


def test_what_the_command_line_sets_wins_over_the_file_and_the_rest_stays(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("runconfig:\n  max_steps: 10\n  checkpoint_steps: 5\nmodel:\n  width: 8\n  activation: relu\n")
    assignments = [
        "runconfig.max_steps=20",
        "model.width=16",
        "model.width=32",
        "model.rates=[1, 2]",
        "optimizer.lr=1e-3",
    ]
    said = effective_configuration(file, assignments).said()
    assert {section: keys for section, keys in said.items() if keys} == {
        "runconfig": {"max_steps": 20, "checkpoint_steps": 5},
        "model": {"width": 32, "activation": "relu", "rates": [1, 2]},
        "optimizer": {"lr": 0.001},
    }


@pytest.mark.parametrize("assignment", ["max_steps=3", "runconfig.max_steps", "", "a.b=1\nc: 2"])
def test_an_assignment_that_is_none_is_refused(assignment):
    with pytest.raises(BadInput, match=r"expected section.key=value"):
        effective_configuration(None, [assignment])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("runconfig.max_stepz=3", "Did you mean 'max_steps'"),
        ("runconfig.max_steps=many", "many"),
        ("model.width=[1", "--set model.width=[1"),
    ],
)
def test_an_assignment_is_checked_like_the_file(assignment, message):
    with pytest.raises(ReportedError) as refused:
        effective_configuration(None, [assignment])
    text = str(refused.value.report)
    assert message in text
    assert f"--set {assignment}" in text
    assert refused.value.report.line is None


def test_values_that_yaml_reads_otherwise_are_warned_of(tmp_path, capfd):
    (tmp_path / "run.yaml").write_text("model:\n  bias: yes\n")
    effective_configuration(tmp_path / "run.yaml", [])
    assert "warning: " in capfd.readouterr().err


def test_a_printed_command_means_the_same_cluster(tmp_path):
    home = tmp_path / "a home"
    assert shlex.split(command_line(home, "follow", JOB_ID)) == [
        "cerebras-cloud", "follow", JOB_ID, "--home", str(home),
    ]  # fmt: skip
    assert command_line(None, "follow", JOB_ID) == f"cerebras-cloud follow {JOB_ID}"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (190, "3m10s"), (7500, "2h05m"), (356_400, "4d3h")]
)
def test_durations_are_readable(seconds, text):
    assert readable_duration(seconds) == text


@pytest.mark.parametrize(
    ("compile_status", "execute_status", "shown"),
    [
        (StageStatus.RUNNING, StageStatus.WAITING, StageKind.COMPILE),
        (StageStatus.FAILED, StageStatus.CANCELLED, StageKind.COMPILE),
        (StageStatus.SKIPPED, StageStatus.QUEUED, StageKind.EXECUTE),
        (StageStatus.SUCCEEDED, StageStatus.SUCCEEDED, StageKind.EXECUTE),
    ],
)
def test_the_stage_shown_is_the_one_the_job_is_in_or_ended_in(compile_status, execute_status, shown):
    stages = [
        StageView(kind=StageKind.COMPILE, status=compile_status, attempts=1),
        StageView(kind=StageKind.EXECUTE, status=execute_status, attempts=0),
    ]
    assert current_stage(job_view(JobStatus.RUNNING).model_copy(update={"stages": stages})).kind is shown


def test_a_broken_url_is_bad_input(command, connected, monkeypatch):
    monkeypatch.setenv(URL_VARIABLE, "http://host:port")
    assert command("jobs", "list") == 2


def test_a_system_from_a_file_is_submitted_by_its_path_in_the_bundle(
    connected, stand_in, command, tmp_path, monkeypatch
):
    (tmp_path / "code" / "specs").mkdir(parents=True)
    (tmp_path / "code" / "train.py").write_text("print()")
    (tmp_path / "code" / "specs" / "wse4.yaml").write_text("like: cs-3\n")
    monkeypatch.chdir(tmp_path)
    assert command("submit", "code/train.py", "--system", "code/specs/wse4.yaml", "--detach") == 0
    assert command("submit", "code/train.py", "--set", "runconfig.system=./specs/wse4.yaml", "--detach") == 0
    assert {spec.configuration.runconfig.system for spec in stand_in.specs.values()} == {"specs/wse4.yaml"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--system", "out.yaml"), "--system out.yaml is not in code: choose a --root that holds it."),
        (("--set", "runconfig.system=/tmp/out.yaml"), "the system /tmp/out.yaml is not in code"),
        (("--set", "runconfig.system=../out.yaml"), "the system ../out.yaml is not in code"),
        (("--set", "runconfig.system=none.yaml"), "cannot read the system code/none.yaml: No such file"),
        (("--system", "code/wrong.yaml"), "code/wrong.yaml:2: unknown key 'fabric_row' (column 1)"),
        (("--system", "code/ignored.yaml"), "the system ignored.yaml is left out by an ignore rule."),
    ],
)
def test_a_system_that_is_wrong_or_does_not_travel_is_not_submitted(
    connected, stand_in, command, capfd, tmp_path, monkeypatch, words, said
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()")
    (tmp_path / "code" / ".cerebrasignore").write_text("ignored.yaml\n")
    for name in ("out", "code/ignored"):
        (tmp_path / f"{name}.yaml").write_text("like: cs-3\n")
    (tmp_path / "code" / "wrong.yaml").write_text("like: cs-3\nfabric_row: 1\n")
    monkeypatch.chdir(tmp_path)
    assert command("submit", "code/train.py", *words, "--detach") == 2
    assert said in capfd.readouterr().err
    assert stand_in.specs == {}
