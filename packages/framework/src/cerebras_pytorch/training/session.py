"""A training session: counts the steps of the user's loop and does what is due at the end of each.

A step ends when the loader is next asked for a batch, or at the context's exit: only there are checkpoints
written, signals heeded and max_steps reached.
"""

import math
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

EMPTY_EPOCHS_LIMIT = 100_000
"""A loop may go on for some epochs after the last step, which yield nothing; one that never ends is stopped."""


@dataclass(frozen=True)
class CompiledStep:
    """The artifact's programs in the place of the user's parts."""

    manifest: Manifest
    model: CompiledModel
    loss: CompiledLoss
    update: CompiledUpdate
    optimizer: Optimizer


class TrainingSession:
    """One run of training from an artifact."""

    def __init__(self, process: Process, settings: RunSettings, compiled: CompiledStep, recorder: Recorder) -> None:
        self.step = 0
        self._process = process
        self._settings = settings
        self._compiled = compiled
        self._recorder = recorder
        self._metrics: dict[str, float] = {}
        self._updates = 0  # since the last step ended
        self._batches_counted = self._saved_step = self._empty_epochs = 0
        self._said: set[str] = set()

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """One epoch of full batches, up to the last step. Asking for a batch ends the step before."""
        while True:
            self.end_step()
            if self._is_last_step():
                self._refuse_endless_loop()
                return
            batch = next(source, None)
            if batch is None:
                return
            rows = divide(batch).size
            if rows != self._compiled.manifest.batch_size:
                size = self._compiled.manifest.batch_size
                self._warn_once("ragged", f"dropped a batch of {rows} samples: the model is compiled for {size}")
                continue
            yield batch

    def optimizer_step(self) -> None:
        """In place of `optimizer.step()`."""
        self._updates += 1
        scaler = self._compiled.update.loss_scaler
        before = scaler.scale
        if not self._compiled.update.step():
            self._warn_once("overflow", "gradients overflowed: this step is skipped, and so will be others")
            self._metrics["skipped_steps"] = scaler.skipped_steps
        if scaler.scale != before:
            self._metrics["loss_scale"] = scaler.scale

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
        self._recorder.finished(self.step, self._compiled.update.loss_scaler)

    def _count_step(self) -> None:
        self.step += 1
        self._process.last_step = self.step
        loss = self._compiled.loss.take()
        if loss is None:
            self._warn_once("no loss", "no loss was seen: the loop does not call the criterion given to compile")
        elif not math.isfinite(loss):
            self._warn_once("not finite", f"the loss of step {self.step} is {loss}")
        values = self._metrics if loss is None else {**self._metrics, "loss": loss}
        batches = self._compiled.model.batches_trained - self._batches_counted
        self._recorder.step(self.step, batches * self._compiled.manifest.batch_size, values)
        self._batches_counted += batches
        self._metrics, self._updates = {}, 0

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

    def _refuse_endless_loop(self) -> None:
        self._empty_epochs += 1
        if self._empty_epochs > EMPTY_EPOCHS_LIMIT:
            raise RuntimeError(
                f"the loop goes on although max_steps ({self.step}) is reached: from there on the training loader"
                " yields nothing; bound the loop by epochs, or by no more than max_steps"
            )

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._said:
            self._said.add(subject)
            self._recorder.warning(f"{message} (said once)")
