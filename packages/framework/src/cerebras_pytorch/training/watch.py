"""Ends a run that makes no progress, with the stack of every thread in its log."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_pytorch.limits import limited, main_stack, report_with_stack
from cerebras_pytorch.process import Process

LOOK_SECONDS = 1.0
LONGEST_GAP_SECONDS = 5.0
"""More time than this between two looks was not training's: the process itself was stopped."""


def progress_watched(
    process: Process, limit_seconds: float, progress: Callable[[], object]
) -> AbstractContextManager[None]:
    """Raise `ReportedError` in what runs inside where `progress` gives the same value for so many seconds."""
    look_seconds = min(LOOK_SECONDS, limit_seconds / 4)
    check = _ProgressLimit(process, limit_seconds, progress)
    return limited(process, check, name="progress of training", look_seconds=look_seconds)


class _ProgressLimit:
    """A check of the time in which nothing changed."""

    def __init__(self, process: Process, limit_seconds: float, progress: Callable[[], object]) -> None:
        self._process = process
        self._limit_seconds = limit_seconds
        self._progress = progress
        self._last = progress()
        self._looked_at = time.monotonic()
        self._idle_seconds = 0.0

    def __call__(self) -> ErrorReport | None:
        now, progress = time.monotonic(), self._progress()
        self._idle_seconds += min(now - self._looked_at, LONGEST_GAP_SECONDS)
        self._looked_at = now
        if progress != self._last:
            self._last, self._idle_seconds = progress, 0.0
        if self._idle_seconds < self._limit_seconds:
            return None
        _write_stacks()
        return report_with_stack(
            ErrorCode.RUN_DEADLOCK,
            f"training has made no progress for {self._limit_seconds:g} s (deadlock_timeout_seconds), after step"
            f" {self._process.last_step}",
            main_stack(),
            "The stack of every thread is in the log. A loader that waits for its workers, or a lock, is the usual"
            " reason; where the script only takes long, `deadlock_timeout_seconds` in run.yaml allows more time.",
        )


def _write_stacks() -> None:
    """Past Python's streams: the main thread may hold their locks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identifier, frame in sys._current_frames().items():
        if identifier != threading.get_ident():
            stack = "".join(traceback.format_stack(frame))
            os.write(2, f"Thread {names.get(identifier, identifier)}:\n{stack}".encode())
