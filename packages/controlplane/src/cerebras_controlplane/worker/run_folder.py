"""Makes a stage's run directory, and removes it when the stage is over."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ruamel.yaml import YAML

from cerebras_contract.run_directory import RunDirectory
from cerebras_controlplane.jobs.claim import Claim
from cerebras_controlplane.uploads.bundle import unpack_bundle
from cerebras_controlplane.worker.tools import Tools


@contextmanager
def run_directory(tools: Tools, claim: Claim) -> Iterator[RunDirectory]:
    """A run directory with the bundle in `code/` and the configuration beside it."""
    folder = own_folder(tools) / f"{claim.job_id}-{claim.kind}-{claim.attempt}"
    directory = RunDirectory(folder)
    try:
        for path in (directory.code, directory.checkpoints, directory.logs):
            path.mkdir(parents=True)
        _unpack(tools, claim, directory)
        _write_configuration(claim, directory)
        yield directory
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own_folder(tools: Tools) -> Path:
    """Where this worker makes its run directories; absolute, since the user's process sees the same path."""
    return (tools.settings.work_folder / tools.settings.worker_name).absolute()


def _unpack(tools: Tools, claim: Claim, directory: RunDirectory) -> None:
    with tempfile.NamedTemporaryFile(dir=directory.root) as file:
        tools.blobs.copy_to(claim.spec.bundle, Path(file.name))
        unpack_bundle(Path(file.name), directory.code)


def _write_configuration(claim: Claim, directory: RunDirectory) -> None:
    """The submitted configuration; a job runs on a simulated system where nothing else was said."""
    said = claim.spec.configuration.said()
    said["runconfig"] = {"target_device": "CSX", **said["runconfig"]}
    with directory.config.open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(said, file)
