"""Reads run.yaml as YAML 1.2 and says exactly where it is wrong."""

import warnings
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from cerebras_contract.configuration import RunConfigSection, RunConfiguration
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError


def read_configuration(path: Path) -> RunConfiguration:
    """Read and check a run.yaml; a `ReportedError` names file, line, column, key and the nearest known key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(f"cannot read the run configuration {path}: {_reason(error)}") from None
    return parse_configuration(text, str(path))


def parse_configuration(text: str, file: str) -> RunConfiguration:
    """As `read_configuration`, for a text; `file` is the name that errors show."""
    try:
        content = _yaml().load(text)
    except MarkedYAMLError as error:
        raise _marked(error, file) from None
    except YAMLError as error:
        raise _invalid(str(error).splitlines()[0], file) from None
    try:
        return RunConfiguration.model_validate({} if content is None else content)
    except ValidationError as error:
        raise _not_valid(error, text, file) from None


def differing_readings(text: str) -> list[str]:
    """Warnings for values that YAML 1.1, for which older configurations were written, reads as something else."""
    older = _yaml()
    older.version = (1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)
        try:
            return _differences(_yaml().load(text), older.load(text), "")
        except YAMLError:
            return []


def _differences(new: Any, old: Any, place: str) -> list[str]:
    if isinstance(new, dict) and isinstance(old, dict) and new.keys() == old.keys():
        return [line for key in new for line in _differences(new[key], old[key], f"{place}.{key}".lstrip("."))]
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        pairs = enumerate(zip(new, old, strict=True))
        return [line for at, (a, b) in pairs for line in _differences(a, b, f"{place}[{at}]")]
    if type(new) is type(old) and (new == old or new != new):
        return []
    return [f"{place or 'the file'} is read as {new!r} (YAML 1.2); YAML 1.1 would read {old!r}"]


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def _marked(error: MarkedYAMLError, file: str) -> ReportedError:
    mark = error.problem_mark or error.context_mark
    problem = (error.problem or "not valid YAML").strip()
    if mark is None:
        return _invalid(problem, file)
    return _invalid(f"{problem} (column {mark.column + 1})", file, mark.line + 1)


def _not_valid(error: ValidationError, text: str, file: str) -> ReportedError:
    """Report the first fault with its place; the others are counted, with their keys."""
    faults = error.errors()
    first = faults[0]
    location = tuple(str(part) for part in first["loc"])
    line, column = _place(_yaml().compose(StringIO(text)), location)
    key = ".".join(location) or "the file"
    advice = None
    if first["type"] == "extra_forbidden":
        problem = f"unknown key {key!r}"
        advice = _did_you_mean(location)
    elif not location:
        problem = "the file must be a mapping of sections (runconfig, model, optimizer, train_input, eval_input)"
    else:
        problem = f"{key}: {_expectation(first['msg'])}, not {first['input']!r}"
    if len(faults) > 1:
        others = ", ".join(".".join(str(part) for part in fault["loc"]) for fault in faults[1:])
        problem += f" (and {len(faults) - 1} more: {others})"
    return _invalid(f"{problem} (column {column})", file, line, advice)


def _expectation(message: str) -> str:
    return message.replace("Input should be", "should be")


def _did_you_mean(location: tuple[str, ...]) -> str:
    section: type[BaseModel] = (
        RunConfigSection if location[0] == "runconfig" and len(location) > 1 else RunConfiguration
    )
    known = sorted(section.model_fields)
    near = get_close_matches(location[-1], known, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    if location[-1] in RunConfigSection.model_fields:
        return f"{location[-1]!r} belongs under 'runconfig'."
    return f"Known keys here: {', '.join(known)}."


def _place(node: Node | None, location: tuple[str, ...]) -> tuple[int, int]:
    """Line and column, counted from 1, of the deepest node along `location` that the file has."""
    line, column = 1, 1
    for part in location:
        step = _step(node, part)
        if step is None:
            break
        key, node = step
        line, column = key.start_mark.line + 1, key.start_mark.column + 1
    return line, column


def _step(node: Node | None, part: str) -> tuple[Node, Node] | None:
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if str(key.value) == part), None)
    if isinstance(node, SequenceNode) and part.isdigit() and int(part) < len(node.value):
        return node.value[int(part)], node.value[int(part)]
    return None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"byte {error.start} is not UTF-8"


def _invalid(
    message: str, file: str | None = None, line: int | None = None, advice: str | None = None
) -> ReportedError:
    return ReportedError(
        ErrorReport(code=ErrorCode.CONFIG_INVALID, message=message, file=file, line=line, advice=advice)
    )
