"""The supervisor over small stand-in services: order, restarts, and nothing left behind."""

import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.integration.localcluster.harness import processes_of, stand_in_cluster, until

from cerebras_contract.cluster import ProcessTable

pytestmark = pytest.mark.integration

WELL = 'touch "$HOME_FOLDER/{name}.healthy"; '
TELLS = (
    'cd "$HOME_FOLDER"; echo "start {name}" >> story; touch {name}.healthy; '
    "trap 'echo \"stop {name}\" >> story; exit' TERM; while :; do sleep 0.02; done"
)
STAYS = WELL + "exec sleep 600"


def service(name: str, script: str) -> dict[str, str]:
    return {name: script.replace("{name}", name)}


def pid_in(file: Path) -> int:
    until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text().split()[-1])


def pids(home: Path) -> dict[str, int]:
    table = ProcessTable.model_validate_json((home / "processes.json").read_bytes())
    return {known.name: known.pid for known in table.processes}


def is_gone(pid: int) -> bool:
    """Also as a zombie."""
    return not psutil.pid_exists(pid)


def is_ended(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


def test_layers_start_in_order_and_stop_the_other_way_round(tmp_path):
    layers = [service("queue", TELLS), service("api", TELLS), service("worker", TELLS)]
    with stand_in_cluster(tmp_path, *layers) as supervisor:
        assert supervisor.stdout.readline() == "up\n"
        assert (tmp_path / "connection.json").is_file()
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait() == 0
        assert (tmp_path / "story").read_text().splitlines() == [
            "start queue", "start api", "start worker", "stop worker", "stop api", "stop queue",
        ]  # fmt: skip
        assert processes_of(tmp_path) == []
        assert not (tmp_path / "connection.json").exists()
        assert not (tmp_path / "processes.json").exists()


def test_what_a_service_leaves_behind_is_reaped_when_it_ends(tmp_path):
    """As a sandbox does: its parent ends before it, and the supervisor inherits it."""
    leaves = WELL + 'sh -c \'sh -c "echo \\$\\$ > \\"$HOME_FOLDER/left\\"; sleep 0.2" &\'; exec sleep 600'
    with stand_in_cluster(tmp_path, service("worker", leaves)) as supervisor:
        left = pid_in(tmp_path / "left")
        until(lambda: is_gone(left))
        assert supervisor.stdout.readline() == "up\n"
        until(lambda: [child.pid for child in psutil.Process(supervisor.pid).children()] == [pids(tmp_path)["worker"]])


def test_a_service_that_dies_is_started_again_without_what_it_had_started(tmp_path):
    starts = WELL + 'setsid sleep 600 & echo $! >> "$HOME_FOLDER/child"; exec sleep 600'
    with stand_in_cluster(tmp_path, service("worker", starts)) as supervisor:
        assert supervisor.stdout.readline() == "up\n"
        child, first = pid_in(tmp_path / "child"), pids(tmp_path)["worker"]
        psutil.Process(first).kill()
        until(lambda: pids(tmp_path).get("worker", first) != first)
        until(lambda: pid_in(tmp_path / "child") != child)
        assert is_ended(child)
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait()
        assert processes_of(tmp_path) == []


def test_a_service_that_dies_again_and_again_ends_the_cluster_with_its_log(tmp_path):
    dies = 'echo "cannot go on"; sleep 0.1; ' + WELL + "sleep 0.1; exit 7"
    with stand_in_cluster(tmp_path, service("queue", STAYS), service("api", dies)) as supervisor:
        _, errors = supervisor.communicate(timeout=60)
        assert supervisor.returncode == 1
        assert "api ended with status 7" in errors
        assert errors.rstrip().endswith("cannot go on")
        assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([service("queue", STAYS), service("api", "echo no luck; exit 3")], "api ended with status 3 while starting"),
        (
            [service("queue", WELL + "echo no luck; sleep 0.3; exit 4"), service("api", "exec sleep 600")],
            "queue ended with status 4 while starting",
        ),
    ],
    ids=["the one that starts", "an earlier one"],
)
def test_a_service_that_dies_while_starting_is_named_and_nothing_is_left(tmp_path, layers, named):
    with stand_in_cluster(tmp_path, *layers) as supervisor:
        output, errors = supervisor.communicate(timeout=60)
        assert (supervisor.returncode, output) == (1, "")
        assert named in errors
        assert str(tmp_path / "logs") in errors
        assert errors.rstrip().endswith("no luck")
        assert processes_of(tmp_path) == []
        assert not (tmp_path / "processes.json").exists()


def test_a_service_that_does_not_listen_is_killed_with_all_it_started(tmp_path):
    deaf = "trap '' TERM; sleep 600 & " + WELL + "while :; do sleep 0.05; done"
    with stand_in_cluster(tmp_path, service("worker", deaf)) as supervisor:
        assert supervisor.stdout.readline() == "up\n"
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait() == 0
        assert processes_of(tmp_path) == []
