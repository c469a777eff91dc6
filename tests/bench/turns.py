"""Processes that train by turns, so that what else the machine does falls on all of them."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class Worker:
    """A process that trains when it is told to."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.parameters = int(self._answer("parameters"))

    def seconds(self, steps: int) -> float:
        """What so many steps take."""
        assert self._process.stdin
        self._process.stdin.write(f"{steps}\n")
        return self._answer("seconds")

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _answer(self, word: str) -> float:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(word):
                return float(line.split()[1])
        raise RuntimeError("a process that trains has ended")


def work(parameters: int, step: Callable[[], object]) -> None:
    """What such a process does once it is ready: so many steps for each line of input."""
    print("parameters", parameters, flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            step()
        print("seconds", time.perf_counter() - started, flush=True)
    os._exit(0)


def seconds_a_step(workers: Sequence[Worker], rounds: int, steps: int) -> list[float]:
    """Medians of rounds in which each has its turn; the first round is not counted. Ends them."""
    times: list[list[float]] = [[] for _ in workers]
    for _ in range(rounds + 1):
        for worker, taken in zip(workers, times, strict=True):
            taken.append(worker.seconds(steps) / steps)
    for worker in workers:
        worker.end()
    return [statistics.median(taken[1:]) for taken in times]
