from typing import Any

import pytest

from cerebras_contract.artifacts import Versions
from cerebras_contract.jobs import JobSpec
from cerebras_contract.systems import load_system
from cerebras_controlplane.artifacts.keys import input_key, source_key
from cerebras_controlplane.models import StoredFile

FILES = {"train.py": "1" * 64, "run.yaml": "2" * 64}
VERSIONS = Versions(compiler="1", torch="2")
RUNCONFIG = {"max_steps": 10}


def key(
    files: dict[str, str] | None = None,
    system: str = "cs-2",
    versions: Versions = VERSIONS,
    **changes: Any,
) -> str:
    spec = JobSpec.model_validate(
        {
            "bundle": "0" * 64,
            "script": "train.py",
            "configuration_path": "run.yaml",
            "configuration": {"runconfig": RUNCONFIG, "optimizer": {"lr": 0.1}},
        }
        | changes
    )
    stored = [StoredFile(name=n, sha256=s, size_bytes=1) for n, s in (files or FILES).items()]
    return input_key(source_key(stored, spec, load_system(system)), versions)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": FILES | {"run.yaml": "3" * 64}},
        {"files": dict(reversed(FILES.items()))},
        {"name": "another"},
        {"bundle": "9" * 64},
        {"configuration": {"runconfig": {"max_steps": 99, "log_steps": 5}, "optimizer": {"lr": 0.2}}},
        {"configuration": {"runconfig": {"job_labels": ["a=b"], "job_priority": "p1"}}},
    ],
)
def test_what_does_not_change_the_program_keeps_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()


@pytest.mark.parametrize(
    "changes",
    [
        {"files": FILES | {"train.py": "3" * 64}},
        {"files": FILES | {"model.py": "4" * 64}},
        {"configuration_path": None},
        {"script": "run.yaml"},
        {"arguments": ["--wide"]},
        {"system": "cs-3"},
        {"versions": Versions(compiler="2", torch="2")},
        {"configuration": {"model": {"width": 8}}},
        {"configuration": {"train_input": {"batch_size": 8}}},
        {"configuration": {"runconfig": {"num_csx": 2}}},
    ],
)
def test_what_changes_the_program_changes_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()
