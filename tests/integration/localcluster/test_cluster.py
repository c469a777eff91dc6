"""The real cluster on this machine: what it shows of itself, what it survives, and that it leaves nothing."""

import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.localcluster.harness import LocalCluster, local_cluster, processes_of, until

from cerebras_contract.cluster import ProcessHealth

pytestmark = pytest.mark.integration
SERVICES = ("valkey", "api", "compile-worker", "run-worker")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that is up."""
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        up = running.run("up", "--detach")
        assert up.returncode == 0, up.stderr
        yield running
        down = running.run("down")
        assert down.returncode == 0, down.stderr
        assert "run-worker" in down.stdout
        assert processes_of(running.home) == []


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A home without a cluster."""
    with local_cluster(tmp_path) as prepared:
        yield prepared


def family(cluster: LocalCluster) -> list[psutil.Process]:
    supervisor = psutil.Process(cluster.pids()["supervisor"])
    return [supervisor, *supervisor.children(recursive=True)]


def secrets_of(home: Path) -> list[str]:
    lines = dict(line.split(maxsplit=1) for line in (home / "valkey.conf").read_text().splitlines())
    return [(home / "api_key").read_text().strip(), lines["requirepass"]]


def test_status_knows_every_process(cluster):
    status = cluster.status()
    assert status.running
    assert status.home == str(cluster.home)
    assert [process.name for process in status.processes] == ["supervisor", *SERVICES]
    assert {process.health for process in status.processes} == {ProcessHealth.HEALTHY}
    assert {process.name: process.pid for process in status.processes} == cluster.pids()
    text = cluster.run("status")
    assert text.returncode == 0
    assert all(name in text.stdout for name in (status.url, *SERVICES))


def test_what_is_private_is_readable_by_the_owner_alone(cluster):
    paths = {".": 0o700, "api_key": 0o600, "valkey.conf": 0o600, "connection.json": 0o600, "processes.json": 0o600}
    modes = {name: stat.S_IMODE((cluster.home / name).stat().st_mode) for name in paths}
    assert modes == paths


def test_secrets_are_in_no_command_line_and_no_log(cluster):
    commands = [" ".join(process.cmdline()) for process in family(cluster)]
    logs = [path.read_text(errors="replace") for path in (cluster.home / "logs").iterdir()]
    assert len(commands) >= 5
    assert len(logs) >= 5
    for secret in secrets_of(cluster.home):
        assert len(secret) >= 40
        assert not [text for text in (*commands, *logs) if secret in text]


def test_only_the_loopback_is_listened_on(cluster):
    pids = {process.pid for process in family(cluster)}
    listening = [
        connection.laddr
        for connection in psutil.net_connections("inet")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert len({address.port for address in listening}) == 2


def test_up_twice_says_that_it_is_up_already(cluster):
    pids = cluster.pids()
    again = cluster.run("up", "--detach")
    assert again.returncode == 0
    assert "is up already" in again.stdout
    assert cluster.status().url in again.stdout
    assert cluster.pids() == pids


@pytest.mark.parametrize("name", SERVICES)
def test_a_process_that_is_killed_is_started_again(cluster, name):
    before = cluster.pids()
    psutil.Process(before[name]).kill()
    until(lambda: cluster.pids().get(name, before[name]) != before[name])
    until(cluster.is_healthy)
    after = cluster.pids()
    assert {other: pid for other, pid in after.items() if other != name} == {
        other: pid for other, pid in before.items() if other != name
    }


def test_a_second_cluster_runs_beside_and_ends_with_ctrl_c(cluster, new_cluster):
    foreground = new_cluster.start("up")
    first_line = foreground.stdout.readline()
    assert first_line == f"The cluster is up at {new_cluster.status().url}\n", foreground.stderr.read()
    assert new_cluster.status().url != cluster.status().url
    assert new_cluster.is_healthy()
    foreground.send_signal(signal.SIGINT)
    output, errors = foreground.communicate(timeout=120)
    assert (foreground.returncode, errors) == (0, "")
    assert output.endswith("The cluster is stopped.\n")
    assert processes_of(new_cluster.home) == []
    assert new_cluster.run("status").returncode == 1
    assert cluster.is_healthy()


def test_what_a_killed_supervisor_leaves_is_cleaned_by_up_and_by_down(new_cluster):
    assert new_cluster.run("up", "--detach").returncode == 0
    old, url = family(new_cluster), new_cluster.status().url
    old[0].kill()
    until(lambda: not old[0].is_running() or old[0].status() == psutil.STATUS_ZOMBIE)
    status = new_cluster.run("status")
    assert status.returncode == 1
    assert "dead" in status.stdout

    again = new_cluster.run("up", "--detach")
    assert again.returncode == 0, again.stderr
    assert "Cleaning up" in again.stdout
    assert new_cluster.status().url == url  # whoever follows a job finds it again
    assert {process.pid for process in old}.isdisjoint(process.pid for process in processes_of(new_cluster.home))

    psutil.Process(new_cluster.pids()["supervisor"]).kill()
    down = new_cluster.run("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert processes_of(new_cluster.home) == []
    assert new_cluster.run("down").stdout == f"No cluster was running at {new_cluster.home}.\n"


def test_two_at_once_make_one_cluster(new_cluster):
    both = [new_cluster.start("up", "--detach") for _ in "ab"]
    outputs = [process.communicate(timeout=120) for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes, outputs
    for code, (output, errors) in zip(codes, outputs, strict=True):
        assert "is up" in output if code == 0 else "another `cerebras-cloud up` is at work" in errors
    assert len(new_cluster.pids()) == 5
    assert new_cluster.is_healthy()
    assert new_cluster.run("down").returncode == 0
    assert processes_of(new_cluster.home) == []


def assert_not_started(cluster: LocalCluster, up: subprocess.CompletedProcess[str]) -> None:
    assert up.returncode == 1
    assert "Traceback" not in up.stderr
    assert processes_of(cluster.home) == []
    assert not (cluster.home / "connection.json").exists()
    assert not (cluster.home / "processes.json").exists()


@pytest.mark.parametrize("words", [("--detach",), ()], ids=["detached", "foreground"])
def test_a_service_that_cannot_start_is_named_with_the_end_of_its_log(new_cluster, words):
    up = new_cluster.run("up", *words, "--user-python", "/bin/true")
    assert_not_started(new_cluster, up)
    assert "-worker ended with status 1 while starting" in up.stderr
    assert "/bin/true does not answer as a Python does" in up.stderr


def test_a_port_that_is_taken_is_named(new_cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = new_cluster.run("up", "--detach", "--port", str(port))
    assert_not_started(new_cluster, up)
    assert f"port {port} is in use" in up.stderr


def test_a_python_that_is_none_is_refused(new_cluster):
    up = new_cluster.run("up", "--user-python", "/no/such/python")
    assert_not_started(new_cluster, up)
    assert "/no/such/python is not a program" in up.stderr
