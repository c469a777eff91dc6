"""One embedded cluster for all end-to-end tests, driven only by the public command line and SDK."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cerebras_cloud.client import Client
from cerebras_cloud.connection import find_endpoint

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("cerebras-cloud")


@dataclass
class Cluster:
    """A cluster's home, and the environment in which its users work."""

    home: Path
    environment: dict[str, str] = field(repr=False)

    def start(self, *words: str | Path, folder: Path | None = None, **options: object) -> subprocess.Popen:
        command = [COMMAND, *map(str, words)]
        return subprocess.Popen(command, cwd=folder, env=self.environment, text=True, **options)  # type: ignore[call-overload]

    def run(self, *words: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, *map(str, words)]
        return subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False, timeout=300
        )

    def client(self) -> Client:
        return Client(find_endpoint(self.home))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("cluster")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CEREBRAS_")}
    environment = {**kept, "HOME": str(tmp_path_factory.mktemp("user")), "CEREBRAS_CLOUD_HOME": str(home)}
    running = Cluster(home, environment)
    up = running.run("up", "--detach")
    assert up.returncode == 0, up.stderr
    yield running
    down = running.run("down")
    assert down.returncode == 0, down.stderr


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A copy of the example, as a user would have it."""
    return Path(shutil.copytree(ROOT / "examples" / "mnist", tmp_path / "mnist"))
