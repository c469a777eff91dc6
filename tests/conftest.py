"""Fixtures for tests that train: each runs in a directory and a process description of its own."""

import os
from pathlib import Path

import pytest

# Before anything imports torch: on a busy machine its threads would spend most of their time spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, empty, as the run directory of a script run by hand."""
    from cerebras_contract.run_directory import RunDirectory
    from cerebras_pytorch.process import Process, set_current_process

    monkeypatch.chdir(tmp_path)
    set_current_process(Process(RunDirectory(tmp_path)))
    return tmp_path
