"""What a user's process can see and do."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.workers.harness import Cluster, run_cluster

from cerebras_contract.run_directory import SandboxKind

pytestmark = pytest.mark.integration

LOOKS_AROUND = """
import json, os, pathlib, socket

def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__

home = directory.root.parents[2]
compile_model()
print(json.dumps({
    "environment": sorted(os.environ),
    "database": attempt(lambda: (home / "database.sqlite").read_bytes()),
    "api_key": attempt(lambda: (home / "api_key").read_text()),
    "other_runs": attempt(lambda: os.listdir(directory.root.parent)),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "valkey": attempt(lambda: socket.create_connection(("127.0.0.1", VALKEY_PORT))),
    "first_process": attempt(lambda: pathlib.Path("/proc/1/environ").read_text()),
    "write_system": attempt(lambda: pathlib.Path("/usr/x").write_text("x")),
    "write_root": attempt(lambda: pathlib.Path("/x").write_text("x")),
    "write_artifact": attempt(lambda: (directory.compile / "x").write_text("x")),
    "write_own": attempt(lambda: (directory.root / "x").write_text("x")),
}))
"""
CLEAN_ENVIRONMENT = {
    "CEREBRAS_RUN_DIRECTORY",
    "HOME",
    "LANG",
    "PATH",
    "PYTHONDONTWRITEBYTECODE",
    "OMP_WAIT_POLICY",
    "PYTHONUNBUFFERED",
}
LEAVES_A_DAEMON = """
import os, subprocess, sys
compile_model()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(601)"])
    os._exit(0)
os.wait()
"""


def what_it_sees(cluster: Cluster) -> dict[str, Any]:
    cluster.start_workers()
    script = LOOKS_AROUND.replace("VALKEY_PORT", str(cluster.valkey_port))
    job = cluster.finished(cluster.submit(script).id)
    seen: dict[str, Any] = json.loads(cluster.log_of(job.id))
    return seen


def test_in_the_sandbox_there_is_only_the_run_directory(cluster: Cluster) -> None:
    seen = what_it_sees(cluster)
    assert set(seen.pop("environment")) <= CLEAN_ENVIRONMENT | {"PWD", "LC_CTYPE"}
    assert "canary" not in seen.pop("first_process")
    assert len(json.loads(seen.pop("other_runs").replace("'", '"'))) == 1
    assert seen == {
        "database": "FileNotFoundError",
        "api_key": "FileNotFoundError",
        "interfaces": ["lo"],
        "valkey": "ConnectionRefusedError",
        "write_system": "OSError",
        "write_root": "OSError",
        "write_artifact": "OSError",
        "write_own": "1",
    }


def test_without_a_sandbox_the_environment_is_clean_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with run_cluster(tmp_path, sandbox=SandboxKind.NONE) as cluster:
        assert set(what_it_sees(cluster)["environment"]) <= CLEAN_ENVIRONMENT | {"PWD", "LC_CTYPE"}
        cluster.finished(cluster.submit(LEAVES_A_DAEMON).id)
        assert not daemons(tmp_path)


def daemons(folder: Path) -> list[psutil.Process]:
    """Processes that came from a job of this cluster."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("CEREBRAS_RUN_DIRECTORY", "")
        except psutil.Error:
            continue
        if mark.startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_a_worker_that_cannot_make_a_sandbox_says_how_to_go_on(cluster: Cluster) -> None:
    (cluster.folder / "user_python").write_text("#!/bin/sh\nexit 3\n")
    worker = cluster.start_worker("cerebras_compiler_worker", "compile-worker")
    assert worker.popen.wait(30) == 1
    log = worker.log.read_text()
    assert "[config.invalid]" in log
    assert "Traceback" not in log
