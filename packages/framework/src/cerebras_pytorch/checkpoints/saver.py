"""Writes checkpoints in a thread of its own, one at a time: training waits only while state is copied."""

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cerebras_pytorch.checkpoints.folder import KeepRule, let_go
from cerebras_pytorch.checkpoints.save import Snapshot, write_checkpoint

NICENESS = 10


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete."""

    step: int
    folder: Path


class Saver:
    """Checkpoints being written. An error in one comes out of the next call, whichever that is."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint", initializer=_give_way)
        self._writing: Future[Saved] | None = None
        self._saved: list[Saved] = []

    def save(self, folder: Path, snapshot: Snapshot, rule: KeepRule) -> None:
        """Begin to write. Waits for the checkpoint before: there is never more than one copy of the state."""
        self.wait()
        self._writing = self._thread.submit(_write, folder, snapshot, rule)

    def take_saved(self) -> list[Saved]:
        """The checkpoints that were completed since this was last asked."""
        if self._writing is not None and self._writing.done():
            self.wait()
        saved, self._saved = self._saved, []
        return saved

    def wait(self) -> None:
        """Until nothing is being written. Raises `ReportedError` if a checkpoint could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._saved.append(writing.result())


def _give_way() -> None:
    """Let training have the processor first. On Linux each thread has a niceness of its own, and hands it on."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:  # one that gives way already may not take it back
        os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def _write(folder: Path, snapshot: Snapshot, rule: KeepRule) -> Saved:
    write_checkpoint(folder, snapshot)
    let_go(folder.parent, rule)
    return Saved(snapshot.step, folder)
