"""The user's process: started in its sandbox, watched, asked to end, ended."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from cerebras_contract.run_directory import SandboxKind
from cerebras_controlplane.sandbox import tether
from cerebras_controlplane.sandbox.bubblewrap import bubblewrap_command, unavailable
from cerebras_controlplane.sandbox.user_python import UserPython

RUN_MARK = "CEREBRAS_RUN_DIRECTORY"
SIGNAL_EXIT_BASE = 128  # bubblewrap, as a shell, answers 128 + N for a program that signal N ended


@dataclass(frozen=True)
class Launch:
    """What to start and what it may touch: `folder` is writable but for `read_only` inside it."""

    user_python: UserPython
    arguments: list[str]
    folder: Path
    working_folder: Path
    read_only: list[Path]
    log: Path


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended: by its exit status, or by a signal."""

    exit_status: int
    signal: signal.Signals | None

    def __str__(self) -> str:
        return f"exit status {self.exit_status}" if self.signal is None else self.signal.name


def clean_environment(python: Path, home: Path, mark: Path) -> dict[str, str]:
    """The whole environment of a user's process: nothing of the worker's is in it."""
    return {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Threads that wait for each other sleep instead of spinning: two jobs on two cores, or one beside
        # anything else, were seen to train ten times faster with it.
        "OMP_WAIT_POLICY": "PASSIVE",
        RUN_MARK: str(mark),
    }


class UserProcess:
    """A running user's process, and all that it starts."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        folder: Path,
        sandbox_pid: int | None = None,
        status: BinaryIO | None = None,
    ) -> None:
        self._popen = popen
        self._folder = folder
        self._sandbox_pid = sandbox_pid
        self._status = status  # kept open: bubblewrap writes there once more, and would die of a closed pipe

    def wait(self, timeout_seconds: float) -> ProcessEnd | None:
        """How it ended; None if it still runs after the timeout."""
        try:
            return _end_of(self._popen.wait(timeout_seconds))
        except subprocess.TimeoutExpired:
            return None

    def ask_to_end(self) -> bool:
        """Send SIGTERM to the user's own process, since bubblewrap would die of it without passing it on.

        False if there was no such process yet.
        """
        try:
            process = psutil.Process(self._sandbox_pid or self._popen.pid)
            if self._sandbox_pid is not None:
                process = min(process.children(), key=lambda child: (child.create_time(), child.pid))
            process.send_signal(signal.SIGTERM)
        except (psutil.NoSuchProcess, ValueError):
            return False
        return True

    def end_all(self) -> ProcessEnd:
        """Kill whatever is left of it and of what it started; answers how it ended."""
        if self._popen.poll() is None:
            # In the sandbox, the death of its first process ends all of them, and then bubblewrap outside.
            with suppress(ProcessLookupError):
                os.kill(self._sandbox_pid or self._popen.pid, signal.SIGKILL)
        if self._sandbox_pid is None:
            kill_marked(self._folder)
        end = _end_of(self._popen.wait())
        if self._status is not None:
            self._status.close()
        return end


def _end_of(status: int) -> ProcessEnd:
    number = -status if status < 0 else status - SIGNAL_EXIT_BASE
    ended_by = signal.Signals(number) if number in set(signal.Signals) else None
    return ProcessEnd(exit_status=status, signal=ended_by)


def start(launch: Launch, sandbox: SandboxKind) -> UserProcess:
    """Start the user's process; its output is appended to the log. Raises `ReportedError` if there is no sandbox.

    Call it from a thread that lives as long as the worker: the process dies with the thread that started it.
    """
    with launch.log.open("ab") as log:
        if sandbox is SandboxKind.NONE:
            return _start_tethered(launch, log.fileno())
        return _start_sandboxed(launch, log.fileno())


def _start_tethered(launch: Launch, log_fd: int) -> UserProcess:
    home = launch.folder / "home"
    home.mkdir(exist_ok=True)
    python = launch.user_python.executable
    popen = subprocess.Popen(
        [sys.executable, "-I", tether.__file__, str(os.getpid()), str(python), *launch.arguments],
        env=clean_environment(python, home, launch.folder),
        cwd=launch.working_folder,
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        start_new_session=True,
    )
    return UserProcess(popen, launch.folder)


def _start_sandboxed(launch: Launch, log_fd: int) -> UserProcess:
    status_read, status_write = os.pipe()
    python = launch.user_python.executable
    command = bubblewrap_command(
        launch.user_python, launch.folder, launch.read_only, launch.working_folder, status_write
    )
    try:
        popen = subprocess.Popen(
            [*command, str(python), *launch.arguments],
            env=clean_environment(python, Path("/tmp"), launch.folder),  # noqa: S108 - the sandbox's own
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            pass_fds=[status_write],
        )
    finally:
        os.close(status_write)
    status = os.fdopen(status_read, "rb")
    first_line = status.readline()
    if not first_line:
        status.close()
        popen.wait()
        raise unavailable(_last_line(launch.log))
    return UserProcess(popen, launch.folder, int(json.loads(first_line)["child-pid"]), status)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "bubblewrap ended without a word"


def kill_marked(folder: Path) -> None:
    """Kill every process of a run in this folder, whatever session or parent it has by now."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mark = process.environ().get(RUN_MARK)
            if mark is not None and Path(mark).is_relative_to(folder):
                process.kill()


def check_sandbox(user_python: UserPython, sandbox: SandboxKind) -> None:
    """See that the user's Python starts in the sandbox; raises `ReportedError` (sandbox.unavailable)."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        launch = Launch(user_python, ["-c", "import encodings"], root, root, [], root / "log")
        process = start(launch, sandbox)
        end = process.wait(timeout_seconds=60)
        process.end_all()
        if end is None or end.exit_status != 0:
            raise unavailable(f"{user_python.executable} does not start in it: {_last_line(launch.log)}")
