"""Reads a YAML 1.2 file into a contract model and says exactly where it is wrong: file, line, key, nearest key."""

import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError

Model = TypeVar("Model", bound=BaseModel)


def yaml_reader() -> YAML:
    """A reader of YAML 1.2 that makes plain values only."""
    return YAML(typ="safe", pure=True)


def read_text(path: Path, what: str) -> str:
    """The text of a file; a `ReportedError` says what could not be read, and why."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"cannot read the {what} {path}: {_reason(error)}") from None


def load_yaml(text: str, file: str) -> Any:
    """The content of a YAML text; `file` is the name that errors show."""
    try:
        return yaml_reader().load(text)
    except MarkedYAMLError as error:
        raise _marked(error, file) from None
    except YAMLError as error:
        raise invalid(str(error).splitlines()[0], file) from None


def checked(model: type[Model], content: Any, text: str, file: str, advice: str | None = None) -> Model:
    """`content`, which was read from `text`, as a model. Its first fault is placed; the others are counted.

    `advice` is given where nothing better is known.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _not_valid(model, error, text, file, advice) from None


def invalid(message: str, file: str | None = None, line: int | None = None, advice: str | None = None) -> ReportedError:
    """The error of a file that does not say what it should."""
    return ReportedError(
        ErrorReport(code=ErrorCode.CONFIG_INVALID, message=message, file=file, line=line, advice=advice)
    )


def line_of(text: str, *keys: str) -> int:
    """The line, counted from 1, of a key of a YAML text, or of the deepest key on the way that it has."""
    return _place(yaml_reader().compose(StringIO(text)), keys)[0]


def _marked(error: MarkedYAMLError, file: str) -> ReportedError:
    mark = error.problem_mark or error.context_mark
    problem = (error.problem or "not valid YAML").strip()
    if mark is None:
        return invalid(problem, file)
    return invalid(f"{problem} (column {mark.column + 1})", file, mark.line + 1)


def _not_valid(
    model: type[BaseModel], error: ValidationError, text: str, file: str, advice: str | None
) -> ReportedError:
    faults = error.errors()
    first = faults[0]
    location = tuple(str(part) for part in first["loc"])
    line, column = _place(yaml_reader().compose(StringIO(text)), location)
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        problem, advice = f"unknown key {key!r}", _did_you_mean(model, location)
    elif first["type"] == "missing":
        problem = f"{key} is missing"
    elif not location and first["type"] == "model_type":
        problem = f"the file must be a mapping with keys such as {', '.join([*model.model_fields][:5])}"
    elif not location:
        problem = first["msg"].removeprefix("Value error, ")
    elif first["type"] == "value_error":
        problem = f"{key}: {first['msg'].removeprefix('Value error, ')}"
    else:
        problem = f"{key}: {_expectation(first['msg'])}, not {first['input']!r}"
    if len(faults) > 1:
        others = ", ".join(".".join(str(part) for part in fault["loc"]) for fault in faults[1:])
        problem += f" (and {len(faults) - 1} more: {others})"
    return invalid(f"{problem} (column {column})", file, line, advice)


def _expectation(message: str) -> str:
    return message.replace("Input should be", "should be").removeprefix("Value error, ")


def _did_you_mean(model: type[BaseModel], location: tuple[str, ...]) -> str:
    *path, key = location
    known = sorted(_section(model, path).model_fields)
    near = get_close_matches(key, known, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    for section in model.model_fields:
        if not path and key in _section(model, [section]).model_fields:
            return f"{key!r} belongs under {section!r}."
    return f"Known keys here: {', '.join(known)}."


def _section(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """The model of the mapping at a path, or the last one on the way."""
    for part in path:
        field = model.model_fields.get(part)
        model = next(_models_in(field.annotation), model) if field is not None else model
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models of an annotation such as `Section`, `Section | None` or `list[Section]`."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


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
