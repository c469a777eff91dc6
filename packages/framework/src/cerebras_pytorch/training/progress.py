"""A progress bar at the bottom of a terminal; log lines appear above it, whole.

It has no thread of its own, so that a loader may fork worker processes at any time: it is drawn when a step ends.
"""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as RemainingColumn

from cerebras_pytorch import log
from cerebras_pytorch.process import Process

REDRAW_SECONDS = 0.2


class ProgressBar:
    """Steps of a run. `max_steps` None: how many there will be is not known."""

    def __init__(self, max_steps: int | None) -> None:
        self._console = Console(soft_wrap=True)
        remaining: list[ProgressColumn] = [RemainingColumn()] if max_steps is not None else []
        self._progress = Progress(
            TextColumn("Step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}, {task.fields[rate]:.1f} samples/s"),
            TimeElapsedColumn(),
            *remaining,
            console=self._console,
            auto_refresh=False,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=max_steps, loss="none", rate=0.0)
        self._drawn_at = 0.0

    def step(self, step: int, loss: str, rate: float) -> None:
        """A step has ended; `rate` is in samples a second of wall time."""
        if not self._progress.live.is_started:
            self._progress.start()
            log.show_above(self._console)
        now = time.monotonic()
        due = now >= self._drawn_at + REDRAW_SECONDS
        self._progress.update(self._task, completed=step, loss=loss, rate=rate, refresh=due)
        self._drawn_at = now if due else self._drawn_at

    def close(self) -> None:
        """Draw it a last time and leave it there."""
        if self._progress.live.is_started:
            self._progress.refresh()
            self._progress.stop()
            log.show_above(None)


def bar_of(process: Process, max_steps: int | None) -> ProgressBar | None:
    """A bar where a person looks on: run by hand, with standard output a terminal that can redraw a line."""
    if process.stage is not None or sys.stdout is not sys.__stdout__ or not Console().is_interactive:
        return None
    return ProgressBar(max_steps)
