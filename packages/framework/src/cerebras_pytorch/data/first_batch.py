"""A limit on the time in which a loader must yield its first batch, and where it sat when it did not.

With worker processes the main thread only waits for them. So each worker, as it starts, prepares to write down its own
stack when it is asked to, which works wherever it sits, and to end then.
"""

import faulthandler
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_pytorch.limits import limited, main_stack, report_with_stack
from cerebras_pytorch.process import Process

ASK = signal.SIGUSR2
ANSWER_SECONDS = 2.0
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_files: list[Any] = []  # of a worker process: faulthandler writes to them as long as they are open


@contextmanager
def input_limit(process: Process, source: object, limit_seconds: float) -> Iterator[None]:
    """Raise `CompileError` if the first batch of `source`, taken inside, is not there in time."""
    with tempfile.TemporaryDirectory(prefix="cerebras-loader-") as folder:
        limit = _InputLimit(limit_seconds, Path(folder))
        with limited(process, limit), _prepared_workers(source, Path(folder)):
            yield


class _InputLimit:
    """A check of the time since it was made; reports the stack of the worker that is stuck, else the main one's."""

    def __init__(self, limit_seconds: float, folder: Path) -> None:
        self._limit_seconds = limit_seconds
        self._ends_at = time.monotonic() + limit_seconds
        self._folder = folder

    def __call__(self) -> ErrorReport | None:
        if time.monotonic() < self._ends_at:
            return None
        stack = main_stack()
        stacks = _stacks_of_workers(self._folder)
        message = f"the data loader has yielded no batch after {self._limit_seconds:g} s (input_timeout_seconds)"
        if stacks:
            message += f", and so have none of its {len(stacks)} workers; worker {min(stacks)} sat where it says below"
            stack = stacks[min(stacks)]
        return report_with_stack(
            ErrorCode.COMPILE_INPUT_BLOCKED,
            message,
            stack,
            "Iterate the loader by hand, before compile, with num_workers=0: `next(iter(train_loader))` must come back."
            " `input_timeout_seconds` in run.yaml sets another limit.",
        )


@contextmanager
def _prepared_workers(source: object, folder: Path) -> Iterator[None]:
    """Let the worker processes that a torch loader starts inside write their stacks into files of `folder`."""
    if not isinstance(source, torch.utils.data.DataLoader) or source.num_workers == 0:
        yield
        return
    before = source.worker_init_fn
    source.worker_init_fn = partial(_prepare, folder, before)
    try:
        yield
    finally:
        source.worker_init_fn = before


def _prepare(folder: Path, then: Callable[[int], None] | None, worker: int) -> None:
    """In a worker, as it starts: a signal writes the stack, wherever that stands, and ends the process quietly.

    Where it starts late, another one has given the first batch already, and nothing is asked any more.
    """
    with suppress(FileNotFoundError):
        file = (folder / f"{worker}.{os.getpid()}").open("wb", buffering=0)
        _files.append(file)
        signal.signal(ASK, lambda _number, _frame: os._exit(0))
        faulthandler.register(ASK, file=file, all_threads=False, chain=True)
    if then is not None:
        then(worker)


def _stacks_of_workers(folder: Path) -> dict[int, list[FrameSummary]]:
    """The stack of each worker by its number."""
    files = {path: path.name.split(".") for path in folder.iterdir()}
    for _, pid in files.values():
        with suppress(ProcessLookupError):
            os.kill(int(pid), ASK)
    ends_at = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < ends_at and any(path.stat().st_size == 0 for path in files):
        time.sleep(0.02)
    return {int(worker): _read_stack(path) for path, (worker, _) in files.items()}


def _read_stack(path: Path) -> list[FrameSummary]:
    """A stack as faulthandler writes it, the innermost frame first; here the outermost is."""
    found = [_FRAME.fullmatch(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [FrameSummary(one["file"], int(one["line"]), one["name"]) for one in reversed(found) if one]
