"""A training session: counts the steps of the user's loop and does what is due at the end of each.

A step ends when the loader is next asked for a batch, or at the context's exit: only there are checkpoints
written, signals heeded and max_steps reached.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.checkpoints.save import save_checkpoint
from cerebras_pytorch.endings import RunStopped
from cerebras_pytorch.process import Process
from cerebras_pytorch.settings import RunSettings
from cerebras_pytorch.training.loss import CompiledLoss
from cerebras_pytorch.training.model import CompiledModel
from cerebras_pytorch.training.optimizer import CompiledUpdate
from cerebras_pytorch.training.recorder import Recorder
from cerebras_wafer.simulator.clock import DeviceClock


@dataclass(frozen=True)
class CompiledStep:
    """The artifact's programs in the place of the user's parts, and the clock that they advance."""

    manifest: Manifest
    model: CompiledModel
    loss: CompiledLoss
    update: CompiledUpdate
    optimizer: Optimizer
    clock: DeviceClock


class TrainingSession:
    """One run of training from an artifact."""

    def __init__(self, process: Process, settings: RunSettings, compiled: CompiledStep, recorder: Recorder) -> None:
        self.step = 0
        self._process = process
        self._settings = settings
        self._compiled = compiled
        self._recorder = recorder
        self._metrics: dict[str, float] = {}
        self._samples = self._updates = 0  # since the last step ended
        self._saved_step = 0
        self._ragged_reported = False

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """One epoch of full batches, up to the last step. Asking for a batch ends the step before."""
        while True:
            self.end_step()
            if self._is_last_step():
                return
            batch = next(source, None)
            if batch is None:
                return
            rows = divide(batch).size
            if rows != self._compiled.manifest.batch_size:
                self._report_ragged(rows)
                continue
            self._samples += rows
            yield batch

    def optimizer_step(self) -> None:
        """In place of `optimizer.step()`."""
        self._updates += 1
        if not self._compiled.update.step() and self._compiled.update.skipped_steps == 1:
            self._recorder.warning("gradients overflowed: this step is skipped, and so will be others (said once)")

    def log_metrics(self, values: dict[str, float]) -> None:
        """Values of the step in progress, or of the last one where none is."""
        if self._updates:
            self._metrics.update(values)
        else:
            self._recorder.values(self.step, values)

    def end_step(self) -> None:
        """End the step in progress, if the optimizer made one: metrics, checkpoint, signals."""
        if self._updates:
            self._count_step()
            if self._checkpoint_is_due():
                self._save()
        self._heed_signals()

    def finish(self) -> None:
        """At the context's exit: end the last step, save it, and say how training went."""
        self.end_step()
        if self._settings.checkpoint_steps and self.step > self._saved_step:
            self._save()
        self._recorder.finished(self.step, self._compiled.update.skipped_steps)

    def _count_step(self) -> None:
        self.step += 1
        self._process.last_step = self.step
        self._compiled.clock.advance_step()
        loss = self._compiled.loss.take()
        values = self._metrics if loss is None else {**self._metrics, "loss": loss}
        self._recorder.step(self.step, self._samples, values)
        self._metrics, self._samples, self._updates = {}, 0, 0

    def _checkpoint_is_due(self) -> bool:
        every = self._settings.checkpoint_steps
        return bool(every) and (self.step % every == 0 or self._is_last_step())

    def _is_last_step(self) -> bool:
        return self._settings.max_steps is not None and self.step >= self._settings.max_steps

    def _save(self) -> None:
        directory, compiled = self._process.run_directory, self._compiled
        folder = directory.checkpoint(self.step)
        tensors = compiled.update.tensors()
        save_checkpoint(folder, self.step, compiled.manifest, compiled.model.model, compiled.optimizer, tensors)
        self._saved_step = self.step
        self._recorder.checkpoint(self.step, folder, directory.root)

    def _heed_signals(self) -> None:
        asked = self._process.stop_requested or self._process.checkpoint_requested
        if asked and self.step > self._saved_step:
            self._save()
        self._process.checkpoint_requested = False
        if self._process.stop_requested:
            raise RunStopped

    def _report_ragged(self, rows: int) -> None:
        if not self._ragged_reported:
            self._ragged_reported = True
            size = self._compiled.manifest.batch_size
            self._recorder.warning(f"dropped a batch of {rows} samples: the model is compiled for {size} (said once)")
