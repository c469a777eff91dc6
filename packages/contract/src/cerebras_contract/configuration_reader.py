"""Reads run.yaml as YAML 1.2 and says exactly where it is wrong."""

import warnings
from pathlib import Path
from typing import Any

from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, YAMLError

from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.yaml_reader import checked, load_yaml, read_text, yaml_reader


def read_configuration(path: Path) -> RunConfiguration:
    """Read and check a run.yaml; a `ReportedError` names file, line, column, key and the nearest known key."""
    return parse_configuration(read_text(path, "run configuration"), str(path))


def parse_configuration(text: str, file: str) -> RunConfiguration:
    """As `read_configuration`, for a text; `file` is the name that errors show."""
    content = load_yaml(text, file)
    return checked(RunConfiguration, {} if content is None else content, text, file)


def differing_readings(text: str) -> list[str]:
    """Warnings for values that YAML 1.1, for which older configurations were written, reads as something else."""
    older = yaml_reader()
    older.version = (1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)
        try:
            return _differences(yaml_reader().load(text), older.load(text), "")
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
