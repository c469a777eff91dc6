"""Processes of the operating system: start one, find it again later, end it with everything it started."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from cerebras_contract.cluster import ProcessRecord

KILL_WAIT_SECONDS = 5
LOOK_SECONDS = 0.05
# Linux computes a start time from the time of booting, which shifts a little when the clock is set.
START_TIME_TOLERANCE_SECONDS = 2
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that a Ctrl-C in our terminal is not one for it."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def record(name: str, pid: int) -> ProcessRecord:
    """What it takes to find a living process again."""
    return ProcessRecord(name=name, pid=pid, started_at=psutil.Process(pid).create_time())


def find(known: ProcessRecord) -> psutil.Process | None:
    """The process, None if it has ended: also where its pid now belongs to another."""
    try:
        process = psutil.Process(known.pid)
        same = abs(process.create_time() - known.started_at) < START_TIME_TOLERANCE_SECONDS
        return process if same and _lives(process) else None
    except psutil.NoSuchProcess:
        return None


def _lives(process: psutil.Process) -> bool:
    """A zombie does not: where the first process of a container collects none, it stays one for ever."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_for_end(processes: Sequence[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(_lives, processes)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def end(processes: Sequence[psutil.Process], grace_seconds: float) -> None:
    """Ask processes to end, wait, then kill those that have not, and whatever they had started."""
    family = [child for process in processes for child in descendants(process)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _wait_for_end(processes, grace_seconds)
    left = list(filter(_lives, [*processes, *family]))
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_for_end(left, KILL_WAIT_SECONDS)


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Everything a process has started that still lives."""
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def reap_adopted(ours: Collection[int]) -> None:
    """Collect children that have ended, but those of `ours`: nobody else would, and each would stay a zombie."""
    if sys.platform != "linux":
        return
    with suppress(ChildProcessError):  # there are no children at all
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in ours:  # its own `poll` collects it, and shows the next one
                return
            os.waitpid(ended.si_pid, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that they can still be found. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
