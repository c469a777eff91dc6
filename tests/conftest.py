"""Fixtures for tests that train: each runs in a directory and a process description of its own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Before anything imports torch: on a busy machine its threads would spend most of their time spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests of goldens would compare with")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name under tests/golden; `--update-golden` writes it."""
    folder = Path(__file__).parent / "golden"

    def compare(name: str, text: str) -> None:
        if request.config.getoption("--update-golden"):
            (folder / name).write_text(text, encoding="utf-8")
        assert text == (folder / name).read_text(encoding="utf-8")

    return compare


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, empty, as the run directory of a script run by hand."""
    from cerebras_contract.run_directory import RunDirectory
    from cerebras_pytorch.process import Process, set_current_process

    monkeypatch.chdir(tmp_path)
    set_current_process(Process(RunDirectory(tmp_path)))
    return tmp_path
