"""SIGTERM: finish the step, save a checkpoint, exit. SIGUSR1: save one at the end of the step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from cerebras_pytorch.endings import RunStopped
from cerebras_pytorch.process import Process

STOPPED_STATUS = 128 + signal.SIGTERM


def heed_signals(process: Process) -> None:
    """Heed both until the process ends."""

    def checkpoint(_number: int, _frame: FrameType | None) -> None:
        process.checkpoint_requested = True

    signal.signal(signal.SIGTERM, _stop(process))
    signal.signal(signal.SIGUSR1, checkpoint)


@contextmanager
def heeding_sigterm(process: Process) -> Iterator[None]:
    """Heed the first SIGTERM inside, where the script does nothing of its own about it; the second ends the process."""
    in_main = threading.current_thread() is threading.main_thread()
    if process.stage is not None or not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    stop = _stop(process)

    def stop_once(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stop(number, frame)

    signal.signal(signal.SIGTERM, stop_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop(process: Process) -> Callable[[int, FrameType | None], None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        process.stop_requested = True
        if not process.training:
            raise RunStopped

    return stop
