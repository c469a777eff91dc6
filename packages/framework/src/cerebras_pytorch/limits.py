"""Limits of a compile, in memory and in time: what passes one is ended, and the error says where it stood.

A thread looks twenty times a second. It interrupts the main thread by a signal, which ends Python code and waiting
system calls. What does not heed that (a call into C that does not come back, code that swallows exceptions) is ended
with the whole process, after the result is written. The progress of training is watched in the same way.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from traceback import FrameSummary
from types import FrameType

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.run_directory import StageResult
from cerebras_pytorch.capture.stacks import (
    essential,
    first_line,
    is_users_code,
    stack_of,
    stack_of_traceback,
    stack_text,
)
from cerebras_pytorch.log import logger
from cerebras_pytorch.memory import descendants, free_bytes, is_out_of_memory, used_by_descendants_bytes, used_bytes
from cerebras_pytorch.process import Process
from cerebras_pytorch.settings import GIBIBYTE, RunSettings
from cerebras_wafer.compiler.frontends.places import shown
from cerebras_wafer.errors import CompileError

LOOK_SECONDS = 0.05
AGAIN_SECONDS = 3.0
"""After this time the main thread is interrupted once more: something may have swallowed the first time."""
GRACE_SECONDS = 10.0
"""After this time the process is ended."""
RESERVE_BYTES = 64 << 20
"""Where the machine has less left than this, the process is ended at once: the kernel would kill it next."""
SHARE_OF_FREE_MEMORY = 0.95
INTERRUPT = signal.SIGUSR2  # SIGTERM and SIGUSR1 are the worker's
SHOWN_FRAMES = 12

Check = Callable[[], ErrorReport | None]
"""The error if a limit is passed, else None; called in another thread than the main one."""


class LimitPassed(BaseException):
    """Raised in the main thread; a BaseException, so that `except Exception` does not swallow it."""


@contextmanager
def limited(
    process: Process,
    *checks: Check,
    name: str = "limits of the compile",
    look_seconds: float = LOOK_SECONDS,
    ends_children: bool = False,
) -> Iterator[None]:
    """End what runs inside with a `ReportedError` as soon as one of the checks reports an error.

    With `ends_children` the processes that this one has started are ended first: a C++ compiler starts others, which
    would go on without it.
    It is a `CompileError` where the code is one of compile. Only the main thread can be interrupted: in another one
    nothing is checked, and the log says so.
    """
    if threading.current_thread() is not threading.main_thread():
        logger.warning(f"compile was not called in the main thread, so nothing watches the {name}")
        yield
        return
    watch = _Watch(process, checks, name, look_seconds, ends_children)
    before = signal.getsignal(INTERRUPT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if watch.passed is not None and not watch.done.is_set():
            raise LimitPassed
        if callable(before):
            before(number, frame)

    signal.signal(INTERRUPT, interrupt)
    watch.start()
    try:
        yield
    except BaseException as error:
        watch.finish()
        if watch.passed is not None:
            raise _error_of(watch.passed) from error
        raise
    finally:
        watch.finish()
        time.sleep(0)  # a signal on its way arrives at a system call, while the handler is still there
        signal.signal(INTERRUPT, before if before is not None else signal.SIG_DFL)
        watch.join()


def _error_of(report: ErrorReport) -> ReportedError:
    return CompileError(**dict(report)) if report.code.startswith("compile.") else ReportedError(report)


class _Watch(threading.Thread):
    """Looks, interrupts, and at last ends the process."""

    def __init__(
        self, process: Process, checks: tuple[Check, ...], name: str, look_seconds: float, ends_children: bool
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.passed: ErrorReport | None = None
        self.done = threading.Event()
        self._process = process
        self._checks = checks
        self._look_seconds = look_seconds
        self._ends_children = ends_children
        self._lock = threading.Lock()

    def run(self) -> None:
        while self.passed is None and not self.done.wait(self._look_seconds):
            self._look()
        if self.passed is not None:
            self._end()

    def _look(self) -> None:
        """A check may end what the main thread waits for, as that of a blocked loader does: the error there is of the
        check's making. So `finish` waits for a check that is under way."""
        with self._lock:
            if not self.done.is_set():
                self.passed = next((report for check in self._checks if (report := check())), None)

    def finish(self) -> None:
        """From here on nothing is interrupted; called by the main thread."""
        while not self.done.is_set():
            try:
                with self._lock:
                    self.done.set()
            except LimitPassed:
                continue

    def _end(self) -> None:
        passed_at, next_at = time.monotonic(), 0.0
        while not self.done.wait(LOOK_SECONDS):
            now = time.monotonic()
            with self._lock:
                if self.done.is_set():
                    return
                if now > passed_at + GRACE_SECONDS or _memory_is_gone():
                    self._end_process()
                if now > next_at:
                    self._end_children()
                    signal.pthread_kill(main_thread_id(), INTERRUPT)
                    next_at = now + AGAIN_SECONDS

    def _end_children(self) -> None:
        for child in descendants() if self._ends_children else []:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _end_process(self) -> None:
        """Leave the result, and end without coming back to Python's own end, which could wait for the main thread."""
        result = StageResult(status="failed", error=self.passed, last_step=self._process.last_step)
        self._process.write_result(result)
        os.write(2, f"error: {self.passed}\n".encode())
        os._exit(1)


@contextmanager
def compile_limits(process: Process, settings: RunSettings) -> Iterator[None]:
    """End what runs inside where it passes the settings' limits of memory or time."""
    memory = MemoryLimit(settings.compile_memory_bytes)
    with limited(process, memory, TimeLimit(settings.compile_timeout_seconds), ends_children=True):
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise CompileError(**dict(memory.refused(error))) from error
            raise


class MemoryLimit:
    """A check of the memory of this process and of those that it has started.

    Without a limit of its own it is what the machine had free at the start.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        used, free = used_bytes() or 0, free_bytes()
        self._source = "compile_crd_memory_gi"
        self._limit_bytes = limit_bytes
        if limit_bytes is None and free is not None:
            self._source = "what this machine had free at the start"
            self._limit_bytes = used + int(free * SHARE_OF_FREE_MEMORY)

    def __call__(self) -> ErrorReport | None:
        own = used_bytes()
        if own is None or self._limit_bytes is None:
            return None
        used = own + used_by_descendants_bytes()
        if used > self._limit_bytes:
            limit = f"its limit of {_gibibytes(self._limit_bytes)} ({self._source})"
            return self._report(f"the compile uses {_gibibytes(used)} of memory, more than {limit}", main_stack())
        if _memory_is_gone():
            return self._report(f"the compile uses {_gibibytes(used)}, and the machine has no more", main_stack())
        return None

    def refused(self, error: BaseException) -> ErrorReport:
        """The report of an allocation that the system has refused."""
        stack = stack_of_traceback(error.__traceback__)
        return self._report(f"the compile asked for more memory than there is: {first_line(error)}", stack)

    def _report(self, message: str, stack: list[FrameSummary]) -> ErrorReport:
        return report_with_stack(
            ErrorCode.COMPILE_OUT_OF_MEMORY,
            message,
            stack,
            "Compile on a machine with more memory, or add swap; or make the batch or the model smaller."
            " `compile_crd_memory_gi` in run.yaml sets another limit, in GiB.",
        )


class TimeLimit:
    """A check of the time since it was made."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._ends_at = time.monotonic() + limit_seconds

    def __call__(self) -> ErrorReport | None:
        if time.monotonic() < self._ends_at:
            return None
        return report_with_stack(
            ErrorCode.COMPILE_TIMEOUT,
            f"the compile has not ended after {self._limit_seconds:g} s (compile_timeout_seconds)",
            main_stack(),
            "Look at the line where it stood: a loop in forward is compiled once a turn, so a long one takes long."
            " `compile_timeout_seconds` in run.yaml sets another limit.",
        )


def report_with_stack(code: ErrorCode, message: str, stack: list[FrameSummary], advice: str) -> ErrorReport:
    """A report that shows the user's part of a stack, with the innermost line of the user's as its place."""
    frames = essential(stack)
    own = [frame for frame in frames if is_users_code(frame.filename)]
    where = f"; it stood in\n{stack_text(frames[-SHOWN_FRAMES:])}" if frames else ""
    return ErrorReport(
        code=code,
        message=message + where,
        file=shown(own[-1].filename) if own else None,
        line=own[-1].lineno if own else None,
        advice=advice,
    )


def main_stack() -> list[FrameSummary]:
    """Where the main thread stands."""
    return stack_of(sys._current_frames().get(main_thread_id()))


def _memory_is_gone() -> bool:
    free = free_bytes()
    return free is not None and free < RESERVE_BYTES


def _gibibytes(size_bytes: int) -> str:
    return f"{size_bytes / GIBIBYTE:.2f} GiB"


def main_thread_id() -> int:
    """Identifier of the main thread, for the system and for Python."""
    identifier = threading.main_thread().ident
    assert identifier is not None
    return identifier
