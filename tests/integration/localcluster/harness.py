"""Clusters in homes of their own, and what of them runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cerebras_contract.cluster import ClusterStatus, ProcessTable

COMMAND = Path(sys.executable).with_name("cerebras-cloud")
STAND_IN = Path(__file__).with_name("stand_in_cluster.py")
PATIENCE_SECONDS = 60


def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so; it is checked at least once more at the end of the patience."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it does not come to it"
        time.sleep(0.05)


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process of this machine, but zombies, that has the home in its command line or environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            texts = [*process.cmdline(), *process.environ().values()]
            if any(str(home) in text for text in texts) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_remains(home: Path) -> None:
    """Whatever a failed test has left."""
    for process in processes_of(home):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@dataclass(frozen=True)
class LocalCluster:
    """A home, and the command line used on it."""

    home: Path
    environment: dict[str, str] = field(repr=False)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, *words], env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, *words], env=self.environment, text=True, capture_output=True, check=False, timeout=120
        )

    def status(self) -> ClusterStatus:
        return ClusterStatus.model_validate_json(self.run("status", "--json").stdout)

    def is_healthy(self) -> bool:
        return self.run("status").returncode == 0

    def pids(self) -> dict[str, int]:
        table = ProcessTable.model_validate_json((self.home / "processes.json").read_bytes())
        return {known.name: known.pid for known in table.processes}


@contextmanager
def local_cluster(folder: Path) -> Iterator[LocalCluster]:
    """A cluster's home, not yet up; nothing of it is left afterwards."""
    home = folder / "home"
    user = folder / "user"
    user.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CEREBRAS_")}
    try:
        yield LocalCluster(home, {**kept, "HOME": str(user), "CEREBRAS_CLOUD_HOME": str(home)})
    finally:
        kill_remains(home)


@contextmanager
def stand_in_cluster(home: Path, *layers: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A supervisor over services that are shell scripts, by name; nothing of it is left afterwards."""
    services = json.dumps([list(layer.items()) for layer in layers])
    command = [sys.executable, str(STAND_IN), str(home), services]
    try:
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as supervisor:
            try:
                yield supervisor
            finally:
                supervisor.kill()
    finally:
        kill_remains(home)
