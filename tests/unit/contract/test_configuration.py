"""run.yaml: what is read, and what is said where it is wrong."""

import pytest

from cerebras_contract.configuration import RunConfiguration, compile_time_digest
from cerebras_contract.configuration_reader import differing_readings, parse_configuration, read_configuration
from cerebras_contract.errors import ErrorCode, ReportedError


def error_of(text: str):
    with pytest.raises(ReportedError) as caught:
        parse_configuration(text, "run.yaml")
    report = caught.value.report
    assert report.code is ErrorCode.CONFIG_INVALID
    assert report.file == "run.yaml"
    return report


def test_numbers_are_read_as_yaml_1_2():
    configuration = parse_configuration("optimizer:\n  lr: 1e-4\n  warm: no\n  eight: 010\n", "run.yaml")
    assert configuration.optimizer == {"lr": 0.0001, "warm": "no", "eight": 10}


def test_values_that_yaml_1_1_reads_otherwise_are_named():
    assert differing_readings("optimizer:\n  warm: no\n  lr: 0.1\n") == [
        "optimizer.warm is read as 'no' (YAML 1.2); YAML 1.1 would read False"
    ]


def test_an_empty_file_says_nothing():
    assert parse_configuration("", "run.yaml") == RunConfiguration()


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("runconfig:\n  log_steps: 1\n  max_stepz: 3\n", 3, "Did you mean 'max_steps'?"),
        ("runconfg:\n  max_steps: 3\n", 1, "Did you mean 'runconfig'?"),
        ("model: {}\nmax_steps: 3\n", 2, "'max_steps' belongs under 'runconfig'."),
    ],
)
def test_an_unknown_key_is_placed_and_the_nearest_known_one_named(text, line, advice):
    report = error_of(text)
    assert (report.line, report.advice) == (line, advice)
    assert "unknown key" in report.message


@pytest.mark.parametrize("value", ["many", "'3'", "3.5", "0", "-1", "true"])
def test_a_wrong_type_is_placed_and_shown(value):
    report = error_of(f"model: {{}}\nrunconfig:\n  max_steps: {value}\n")
    assert report.line == 3
    assert report.message.startswith("runconfig.max_steps: ")


def test_a_duplicate_key_is_refused_with_its_place():
    report = error_of("model:\n  width: 1\n  width: 2\n")
    assert report.line == 3
    assert "duplicate key" in report.message


@pytest.mark.parametrize("text", ["- a\n- b\n", "model: [", "model: {a: 2024-01-01}", "just words"])
def test_what_is_no_configuration_is_an_error_of_the_user(text):
    assert error_of(text).message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ReportedError, match="no-such.yaml: No such file"):
        read_configuration(tmp_path / "no-such.yaml")


def test_run_time_keys_do_not_change_the_compile_time_digest():
    def digest(text: str) -> str:
        return compile_time_digest(parse_configuration(text, "run.yaml"))

    plain = digest("model: {width: 8}\n")
    assert plain == digest("model: {width: 8}\nrunconfig: {max_steps: 5, log_steps: 2, job_labels: [a=b]}\n")
    saving = "keep_checkpoints: 2, keep_checkpoints_every: 5, checkpoint_path: a, autoload_last_checkpoint: true"
    assert plain == digest(f"model: {{width: 8}}\nrunconfig: {{checkpoint_steps: 1, {saving}}}\n")
    assert plain == digest("model: {width: 8}\noptimizer: {learning_rate: 0.5}\n")
    assert plain != digest("model: {width: 9}\n")
    assert plain != digest("model: {width: 8}\noptimizer: {weight_decay: 0.1}\n")
    assert plain != digest("model: {width: 8}\nrunconfig: {num_csx: 2}\n")
