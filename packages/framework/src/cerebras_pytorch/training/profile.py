"""A profile of training steps as they were, in device time, for Chrome's about:tracing and Perfetto."""

import json
from pathlib import Path

from cerebras_pytorch.log import logger
from cerebras_pytorch.training.recorder import Recorder
from cerebras_wafer.simulator.clock import RunStep
from cerebras_wafer.simulator.profile import trace_of_steps


class Profile:
    """The steps `first` to `last`, both included, written to `path` once the last of them has ended."""

    def __init__(self, first: int, last: int, path: Path, recorder: Recorder) -> None:
        if not 1 <= first <= last:
            raise ValueError(f"a profile is of a first and a last step from 1 on, not of {first} to {last}")
        self.first, self.last, self.path = first, last, path
        self._recorder = recorder
        self._steps: list[tuple[int, RunStep]] = []

    def step(self, number: int, batches: list[RunStep]) -> None:
        """A step has ended; it was of these batches."""
        if self.first <= number <= self.last:
            self._steps += [(number, batch) for batch in batches]
        if number == self.last:
            self._write()

    def end(self, step: int) -> None:
        """Training has ended after `step`: of a profile that was not complete there is what there was."""
        if step >= self.last:
            return
        if self._steps:
            self._write()
        named = f"the profile of steps {self.first} to {self.last}"
        self._recorder.warning(f"{named} ends with step {step}, the last of this run")

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(trace_of_steps(self._steps)), encoding="utf-8")
        logger.info(f"Wrote the profile of steps {self.first} to {self.last}: {self.path} (open it in ui.perfetto.dev)")
        self._recorder.wrote(self.path)
