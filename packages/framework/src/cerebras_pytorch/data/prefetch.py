"""Prepare batches beside training, in a process of their own.

It takes a process and not a thread: what changes samples at random draws from the global generators, which training
draws from, too. The whole feed runs there, so that any source can be prefetched; its seeds make the batches those that
would be drawn here.
"""

import io
import os
import pickle
import signal
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
from tblib import pickling_support  # type: ignore[import-untyped]

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.data.position import EpochRecord, Feed, Position

LOOK_SECONDS = 1.0
END_SECONDS = 5.0
SMALL_BYTES = 1 << 20
"""To hand over a tensor in shared memory takes about a millisecond: up to this size a copy is faster."""


class PrefetchedFeed:
    """A feed whose batches are prepared in another process, so many ahead; the process begins with the first epoch.

    An exception that is raised there is raised here, with its traceback. Raises `ReportedError` where the process ends
    without one.
    """

    def __init__(self, feed: Feed, batches: int) -> None:
        self.seed = feed.seed
        self._feed = feed
        self._batches = batches
        self._process: BaseProcess | None = None
        self._task = 0
        self._is_open = False  # whether there may be more of the task

    def epoch(self, number: int, past: Position | None = None) -> Iterator[Any]:
        """As `Feed.epoch`. A source that goes on where it was does so with what was prepared already."""
        if not (self._is_open and self._feed.goes_on):
            self._begin(("epoch", number, past))
        return self._results()

    def pass_by(self, number: int, record: EpochRecord) -> None:
        """As `Feed.pass_by`."""
        self._begin(("pass_by", number, record))
        for _ in self._results():
            pass

    def end(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            self._connection.close()
            process.kill()
            process.join(END_SECONDS)

    def _begin(self, order: tuple[Any, ...]) -> None:
        if self._process is None:
            self._start()
        self._task += 1
        self._present.value = self._task
        self._is_open = True
        self._send((self._task, *order))

    def _start(self) -> None:
        self._feed.seed = self.seed
        context = torch.multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._room = context.Semaphore(self._batches)
        self._present = context.Value("q", 0)
        worker = _Worker(self._feed, theirs, self._connection, self._room, self._present)
        self._process = context.Process(target=worker.run, name="prefetch", daemon=True)
        self._process.start()
        theirs.close()

    def _results(self) -> Iterator[Any]:
        """What comes of the present task; what is still on its way of an earlier one is left out."""
        mine = self._task
        while self._is_open and mine == self._task:
            task, kind, content = self._receive()
            self._room.release()
            if task != mine:
                continue
            if kind == "batch":
                yield self._unpacked(content)
                continue
            self._is_open = False
            if kind == "error":
                raise ForkingPickler.loads(content)

    def _send(self, order: tuple[Any, ...]) -> None:
        try:
            self._connection.send(order)
        except OSError as error:
            raise self._ended() from error

    def _receive(self) -> tuple[int, str, bytes]:
        try:
            message: tuple[int, str, bytes] = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        return message

    def _unpacked(self, content: bytes) -> Any:
        """A batch, whose tensors the other process hands over."""
        try:
            return ForkingPickler.loads(content)
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def _ended(self) -> ReportedError:
        process = self._process
        assert process is not None
        process.join(END_SECONDS)
        status = process.exitcode or 0
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return ReportedError(
            ErrorReport(
                code=ErrorCode.PROCESS_KILLED,
                message=f"the process that prepares batches (prefetch_batches) ended with {how} before it was done",
                advice="SIGKILL usually means that memory ran out. With prefetch_batches: 0 batches are read in the"
                " process that trains, which shows where it happens.",
            )
        )


class _Worker:
    """What runs in the other process."""

    def __init__(self, feed: Feed, connection: Connection, theirs: Connection, room: Any, present: Any) -> None:
        self._feed = feed
        self._connection = connection
        self._theirs = theirs
        self._room = room
        self._present = present
        self._parent = os.getpid()

    def run(self) -> None:
        """Do what is asked for until nobody asks any more."""
        self._theirs.close()  # so that the end of the other process is the end of the connection
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that trains
        torch.set_num_threads(1)  # OpenMP's threads do not come along
        try:
            while True:
                task, kind, number, argument = self._connection.recv()
                for message in self._messages(task, kind, number, argument):
                    self._connection.send((task, *message))
        except (EOFError, OSError):
            os._exit(0)

    def _messages(self, task: int, kind: str, number: int, argument: Any) -> Iterator[tuple[str, bytes]]:
        """A batch, or the end of all, or an error, as often as there is room for one and it is still asked for."""
        results: Iterator[Any] | None = None
        is_over = False
        while not is_over and self._is_wanted(task):
            try:
                if results is None:
                    results = self._feed.epoch(number, argument) if kind == "epoch" else self._pass_by(number, argument)
                batch = next(results, None)
                is_over = batch is None
                message = ("end", b"") if is_over else ("batch", _packed(batch))
            except (Exception, SystemExit) as error:
                is_over, message = True, ("error", _pickled(error))
            yield message

    def _pass_by(self, number: int, record: EpochRecord) -> Iterator[Any]:
        self._feed.pass_by(number, record)
        return iter(())

    def _is_wanted(self, task: int) -> bool:
        """Whether another message of this task is asked for; waits until there is room for it."""
        while not self._room.acquire(timeout=LOOK_SECONDS):
            if os.getppid() != self._parent:
                os._exit(0)
        if self._present.value == task:
            return True
        self._room.release()
        return False


class _Pickler(ForkingPickler):
    """Tensors go in shared memory, those that are small as they are."""

    def reducer_override(self, value: Any) -> Any:
        is_plain = type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided
        if not is_plain or value.requires_grad or value.nbytes > SMALL_BYTES or not value.is_contiguous():
            return NotImplemented
        try:
            return torch.from_numpy, (value.numpy(),)
        except TypeError:  # a number format that NumPy does not know
            return NotImplemented


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _pickled(error: BaseException) -> bytes:
    """An exception with its traceback; one that cannot be handed over becomes its text."""
    pickling_support.install(error)
    try:
        pickled = _packed(error)
        ForkingPickler.loads(pickled)
    except Exception:
        text = "".join(traceback.format_exception(error))
        known = RuntimeError(f"{type(error).__name__} in the process that prepares batches:\n{text}")
        pickled = _packed(known)
    return pickled
