"""The README's commands, run as they stand there, in order, in a fresh copy of what they use."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cerebras_contract.states import JobStatus

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the environment and the examples of this checkout, and an empty home beside it."""
    folder = tmp_path / "checkout"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    home = folder.with_name("home")
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CEREBRAS_")}
    return subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**kept, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_commands_work_in_order(checkout):
    install, use = blocks("console")
    assert [line.split("#")[0].strip() for line in install.splitlines()] == ["make demo", "make test"]
    result = run(use, checkout)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    fetched = Path("/tmp") / re.search(r"/tmp/(job-\w+)/model.pt", result.stdout)[1]
    assert (fetched / "artifact" / "report.txt").is_file()
    shutil.rmtree(fetched)
    assert (checkout / "examples" / "mnist" / "compile" / "manifest.json").is_file()
    assert "compile skipped: its artifact exists already" in result.stderr
    assert "run-worker" in result.stdout  # what `status` and `down` say


def test_the_python_example_works(checkout, cluster):
    (python,) = blocks("python")
    folder = checkout / "examples" / "mnist"
    result = subprocess.run(
        [sys.executable, "-c", python.replace('Path("train.py")', 'Path("short.py")')],
        cwd=_with_short_script(folder),
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "StreamEnd"
    with cluster.client() as client:
        assert next(iter(client.jobs.list(limit=1))).status is JobStatus.SUCCEEDED


def _with_short_script(folder: Path) -> Path:
    script = (folder / "train.py").read_text()
    (folder / "short.py").write_text(script.replace('range(train_input["epochs"])', "range(1)"))
    return folder
