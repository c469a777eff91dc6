"""Processes are found again, and never another in their place."""

import subprocess
import sys

import psutil
import pytest
from tests.integration.localcluster.harness import until

from cerebras_localcluster.processes import end, find, reap_adopted, record

pytestmark = pytest.mark.integration


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def is_zombie(process):
    return psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE


def test_a_process_is_found_by_pid_and_start(child):
    known = record("child", child.pid)
    assert find(known).pid == child.pid
    # Its pid given to another process, later.
    assert find(known.model_copy(update={"started_at": known.started_at - 60})) is None


def test_a_zombie_is_not_found_and_counts_as_ended(child):
    known = record("child", child.pid)
    process = psutil.Process(child.pid)
    end([process], grace_seconds=60)
    assert is_zombie(child)  # nobody has collected it
    assert find(known) is None
    end([process], grace_seconds=60)
    child.wait()
    assert find(known) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux adopts")
def test_only_children_of_others_are_reaped(child):
    child.kill()
    until(lambda: is_zombie(child))
    reap_adopted({child.pid})
    assert is_zombie(child)
    reap_adopted(set())
    assert not psutil.pid_exists(child.pid)
