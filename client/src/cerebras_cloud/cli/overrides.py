"""The run configuration of a submit: run.yaml, then what the command line says, which wins."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cerebras_cloud.cli.output import say
from cerebras_cloud.errors import BadInput
from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.configuration_reader import (
    differing_readings,
    parse_configuration,
    read_configuration,
)
from cerebras_contract.errors import ReportedError

_COLUMN = re.compile(r" \(column \d+\)")


def effective_configuration(file: Path | None, assignments: Sequence[str]) -> RunConfiguration:
    """Read `file` and lay `section.key=value` assignments over it, in order.

    Values that YAML 1.1 reads otherwise are said as warnings. Raises `ReportedError` or `BadInput`.
    """
    said: dict[str, Any] = {}
    if file is not None:
        said = read_configuration(file).said()
        for warning in differing_readings(file.read_text(encoding="utf-8")):
            say(f"warning: {file}: {warning}")
    for assignment in assignments:
        said = _merged(said, _parse_assignment(assignment).said())
    return RunConfiguration.model_validate(said)


def _parse_assignment(assignment: str) -> RunConfiguration:
    """Read one assignment as the small run.yaml it stands for, so that its errors are those of the file."""
    path, equals, value = assignment.partition("=")
    keys = path.split(".")
    if not equals or len(keys) < 2 or "\n" in assignment:
        raise BadInput(f"--set {assignment}: expected section.key=value, as in runconfig.max_steps=100.")
    text = "\n".join("  " * depth + f"{key}:" for depth, key in enumerate(keys)) + f" {value}"
    try:
        return parse_configuration(text, f"--set {assignment}")
    except ReportedError as error:
        # Line and column are of a text the user never saw.
        message = _COLUMN.sub("", error.report.message)
        raise ReportedError(error.report.model_copy(update={"line": None, "message": message})) from None


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid over it, mappings merged key by key."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = _merged(below, value)
        else:
            result[key] = value
    return result
