"""Fixtures for tests that train: each runs in a directory and a process description of its own."""

from pathlib import Path

import pytest


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, empty, as the run directory of a script run by hand."""
    from cerebras_contract.run_directory import RunDirectory
    from cerebras_pytorch.process import Process, set_current_process

    monkeypatch.chdir(tmp_path)
    set_current_process(Process(RunDirectory(tmp_path)))
    return tmp_path
