"""What crosses process boundaries keeps its values, and its tables are complete."""

import math

import pytest

from cerebras_contract.errors import ERROR_PROPERTIES, ErrorCode, ErrorReport, FaultReport, ReportedError
from cerebras_contract.events import RUN_EVENT, MetricEvent
from cerebras_contract.jobs import MetricPoint


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e308, 5e-324, -0.0, 0.1])
def test_every_float_survives_json(value):
    event = MetricEvent(sequence=1, time=0.0, step=1, values={"loss": value})
    assert RUN_EVENT.validate_json(event.model_dump_json()) == event
    point = MetricPoint(name="loss", step=1, value=value, time=0.0)
    read = MetricPoint.model_validate_json(point.model_dump_json())
    assert math.copysign(1, read.value) == math.copysign(1, value)
    assert read == point


def test_nan_survives_json():
    event = MetricEvent(sequence=1, time=0.0, step=1, values={"loss": math.nan})
    assert '"NaN"' in event.model_dump_json()
    read = RUN_EVENT.validate_json(event.model_dump_json())
    assert isinstance(read, MetricEvent)
    assert math.isnan(read.values["loss"])


def test_every_error_code_has_its_properties():
    assert set(ERROR_PROPERTIES) == set(ErrorCode)


def test_an_error_is_shown_with_its_place_and_advice():
    report = ErrorReport(
        code=ErrorCode.SCRIPT_RAISED, message="ValueError: no", file="train.py", line=7, advice="Fix it."
    )
    assert str(ReportedError(report)) == "train.py:7: ValueError: no [script.raised]\n  Fix it."


def test_several_faults_are_listed_and_the_first_gives_code_and_place():
    faults = [
        FaultReport(code=ErrorCode.COMPILE_VALUE_READ, message="item()", file="train.py", line=7, advice="Do not."),
        FaultReport(code=ErrorCode.COMPILE_NO_KERNEL, message="svd", module="head", operation="aten._linalg_svd"),
    ]
    report = ErrorReport.of_faults(faults, "2 faults")
    assert (report.code, report.file, report.line) == (ErrorCode.COMPILE_VALUE_READ, "train.py", 7)
    assert ErrorReport.model_validate_json(report.model_dump_json()) == report
    listed = "1. train.py:7: item() [compile.value_read]\n     Do not.\n2. svd [compile.no_kernel]"
    assert str(report) == f"2 faults\n{listed}"
    assert str(ErrorReport.of_faults(faults[1:], "1 fault")) == "svd [compile.no_kernel]"
