from typing import Any

import pytest

from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_contract.jobs import JobSpec
from cerebras_controlplane.artifacts.keys import MadeWith, input_key, source_key
from cerebras_controlplane.models import StoredFile
from cerebras_controlplane.sandbox.user_python import processor

FILES = {"train.py": "1" * 64, "run.yaml": "2" * 64}
VERSIONS = MadeWith(compiler="1", torch="2")
RUNCONFIG = {"max_steps": 10}


def key(
    files: dict[str, str] | None = None,
    versions: MadeWith = VERSIONS,
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
    return input_key(source_key(stored, spec), versions.for_job(spec))


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
        {"configuration": {"runconfig": {"system": "cs-3"}}},
        {"versions": MadeWith(compiler="2", torch="2")},
        {"configuration": {"model": {"width": 8}}},
        {"configuration": {"train_input": {"batch_size": 8}}},
        {"configuration": {"runconfig": {"num_csx": 2}}},
    ],
)
def test_what_changes_the_program_changes_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


def test_the_processor_counts_where_code_is_generated() -> None:
    here, there = (MadeWith(compiler="1", torch="2", processor=name) for name in ("here", "there"))
    generated = {"configuration": {"runconfig": {"codegen": "inductor"}}}
    assert key(versions=here) == key(versions=there) == key()
    assert key(versions=here, **generated) != key(versions=there, **generated)
    assert processor() == processor()
    assert len(processor().split()) > 2


def own_system(path: str, **files: str) -> str:
    named = {name.replace("_", "/") + ".yaml": digest * 64 for name, digest in files.items()}
    return key(files=FILES | named, configuration={"runconfig": {"system": path}})


def test_of_a_system_from_the_bundle_the_content_counts_and_which_of_two_files() -> None:
    assert own_system("a.yaml", a="5", b="6") == own_system("./a.yaml", a="5", b="6")
    assert own_system("a.yaml", a="5", b="6") != own_system("a.yaml", a="7", b="6")
    assert own_system("a.yaml", a="5", b="6") != own_system("b.yaml", a="5", b="6")
    assert own_system("specs/a.yaml", specs_a="5") != key()


@pytest.mark.parametrize("path", ["b.yaml", "/tmp/a.yaml", "../a.yaml"])
def test_a_system_that_the_bundle_does_not_hold_is_refused(path: str) -> None:
    with pytest.raises(ReportedError, match="which the bundle does not hold") as caught:
        own_system(path, a="5")
    assert caught.value.report.code is ErrorCode.CONFIG_INVALID
