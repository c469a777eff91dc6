"""Makes rows for tests, through the functions that the services use."""

from typing import Any

from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.jobs import JobSpec
from cerebras_contract.states import StageKind
from cerebras_controlplane.artifacts.keys import MadeWith
from cerebras_controlplane.db import Sessions, writing
from cerebras_controlplane.jobs.service import submit
from cerebras_controlplane.jobs.workers import register_worker
from cerebras_controlplane.models import Bundle, StoredFile

VERSIONS = MadeWith(compiler="0.1", torch="2.13")
SHA256 = "a" * 64


def make_bundle(sessions: Sessions, sha256: str = SHA256) -> None:
    files = [StoredFile(name="train.py", sha256=sha256, size_bytes=1)]
    with writing(sessions) as session:
        session.merge(Bundle(sha256=sha256, size_bytes=1, files=files, created_at=0.0))


def make_job(sessions: Sessions, **runconfig: Any) -> str:
    """A submitted job; what it compiles differs from every other's unless `model` says otherwise."""
    make_bundle(sessions)
    model = runconfig.pop("model", None) or {"number": len(_numbers)}
    _numbers.append(1)
    configuration = RunConfiguration.model_validate({"runconfig": runconfig, "model": model})
    job, _ = submit(sessions, JobSpec(bundle=SHA256, script="train.py", configuration=configuration), None)
    return job.id


_numbers: list[int] = []


def make_worker(sessions: Sessions, kind: StageKind, name: str = "worker") -> str:
    with writing(sessions) as session:
        register_worker(session, name, kind, VERSIONS)
    return name
