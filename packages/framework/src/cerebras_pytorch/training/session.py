"""A training session: counts the steps of the user's loop and does what is due at the end of each.

A step ends when the loader is next asked for a batch, or at the context's exit: only there are checkpoints
written, signals heeded and max_steps reached.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from cerebras_contract.errors import ReportedError
from cerebras_pytorch.checkpoints.folder import KeepRule
from cerebras_pytorch.checkpoints.read import Checkpoint
from cerebras_pytorch.checkpoints.save import Snapshot
from cerebras_pytorch.checkpoints.saver import Saver
from cerebras_pytorch.data.loader import DataLoader
from cerebras_pytorch.data.position import Feed, Position
from cerebras_pytorch.data.prefetch import PrefetchedFeed
from cerebras_pytorch.endings import RunStopped
from cerebras_pytorch.log import logger
from cerebras_pytorch.process import Process
from cerebras_pytorch.settings import RunSettings
from cerebras_pytorch.training.batches import full_batches
from cerebras_pytorch.training.faults import Faults
from cerebras_pytorch.training.nan import not_finite
from cerebras_pytorch.training.profile import Profile
from cerebras_pytorch.training.recorder import Recorder
from cerebras_pytorch.training.resume import Resume
from cerebras_pytorch.training.state import (
    CompiledStep,
    Place,
    place_of,
    refuse_other_optimizer,
    restore,
    restore_weights,
    snapshot_of,
)

CLOCK_TICK_SECONDS = 0.001
SKIPPED_IN_A_ROW_LIMIT = 100
EMPTY_EPOCHS_LIMIT = 100_000
"""A loop may go on for some epochs after the last step, which yield nothing; one that never ends is stopped."""


class TrainingSession:
    """One run of training from an artifact."""

    def __init__(
        self,
        process: Process,
        settings: RunSettings,
        compiled: CompiledStep,
        recorder: Recorder,
        loader: DataLoader,
        faults: Faults,
    ) -> None:
        self.step = 0
        self.user_state: dict[str, JsonValue] = {}
        self._process = process
        self._settings = settings
        self.compiled = compiled
        self.recorder = recorder
        self._loader = loader
        self._faults = faults
        self.profiles: list[Profile] = []
        self._prepared_step = 0
        self._position = Position()
        self._resume: Resume | None = None
        self._saver = Saver()
        self._saved_at = 0.0
        self._asked_for: list[tuple[Path, JsonValue]] = []  # by the script, of the step in progress
        self._metrics: dict[str, float] = {}
        self._updates = 0  # since the last step ended
        self._skipped = False
        self._skipped_in_a_row = 0  # steps whose loss was not finite
        self._batches_counted = self._saved_step = self._empty_epochs = 0
        self._said: set[str] = set()

    @property
    def prefetch_batches(self) -> int:
        return self._settings.prefetch_batches

    def batches(self, feed: Feed | PrefetchedFeed, *, leftovers: int) -> Iterator[Any]:
        """One epoch of full batches, up to the last step. Asking for a batch ends the step before.

        After a resume, epochs that were trained on yield nothing. The state is put back where the checkpoint was
        saved: when the loop asks for the batch behind its last one.
        """
        epoch = self._position.begin_epoch()
        past = self._resume.place.position if self._resume else None
        if past and epoch < past.last and past.epochs[epoch].trained:
            feed.pass_by(epoch, past.epochs[epoch])
            return
        begun = past if past and epoch >= past.last else None
        source = self._counted(feed.epoch(epoch, begun))
        if begun:
            self._put_back(epoch)
        full = full_batches(source, self.compiled.manifest, leftovers, self._say_dropped)
        while True:
            self.end_step()
            if self._is_last_step():
                self._refuse_endless_loop()
                return
            with nullcontext() if begun else self.recorder.input_wait:  # to come back to a place is no waiting
                batch = next(full, None)
            begun = None
            if batch is None:
                return
            self._prepare_step()
            yield batch

    def _prepare_step(self) -> None:
        """Before the first batch of a step."""
        if self._prepared_step != self.step + 1:
            self._prepared_step = self.step + 1
            self._faults.before(self._prepared_step)

    def _counted(self, source: Iterator[Any]) -> Iterator[Any]:
        for batch in source:
            self._position.update(batches=self._position.batches + 1)
            yield batch
        self._position.update(ended=True)

    def go_on_from(self, checkpoint: Checkpoint, own: bool) -> None:
        """Begin from a checkpoint, `own` where this run saved it before it was cut off."""
        if self._resume is not None and self._resume.own:
            newer = self._shown(self._resume.checkpoint.folder)
            logger.info(f"Going on from {newer}, which is newer than {checkpoint.folder}")
            return
        if self._position.epochs:
            raise RuntimeError("load is for the beginning: call it before the loop, or with weights_only=True")
        place = place_of(checkpoint, self.compiled.manifest.batch_size)
        self.take_weights(checkpoint)
        refuse_other_optimizer(self.compiled, checkpoint)
        self.compiled.optimizer._opt_called = True  # type: ignore[attr-defined]  # epochs to come make no step
        if place is not None:
            self._resume = Resume(checkpoint, place, own)
            self._loader.draw_from(place.seed)
            self.recorder.goes_on_from(place.step)
            logger.info(f"Going on from {self._shown(checkpoint.folder)}: step {place.step}, {place.position}")

    def _shown(self, folder: Path) -> Path:
        root = self._process.run_directory.root
        return folder.relative_to(root) if folder.is_relative_to(root) else folder

    def take_weights(self, checkpoint: Checkpoint) -> None:
        """Put the weights of a checkpoint into the model, and what rode along into `user_state`."""
        restore_weights(self.compiled, checkpoint)
        self._take_extra(checkpoint)

    def _take_extra(self, checkpoint: Checkpoint) -> None:
        self.user_state.clear()
        if isinstance(checkpoint.extra, dict):
            self.user_state.update(checkpoint.extra)

    def _put_back(self, epoch: int) -> None:
        """The loop has come to where the checkpoint was saved, in this epoch."""
        resume, self._resume = self._resume, None
        assert resume is not None
        restore(self.compiled, resume.checkpoint)
        self._take_extra(resume.checkpoint)
        self._saved_at = resume.checkpoint.manifest.created_at
        self._position = Position(list(resume.place.position.epochs))
        while len(self._position.epochs) <= epoch:
            self._position.begin_epoch()
        self.step = self._saved_step = self._process.last_step = resume.place.step
        self._batches_counted = self.compiled.model.batches_trained
        self.compiled.loss.take()
        self._updates, self._metrics = 0, {}

    def optimizer_step(self, step: Callable[[], bool] | None = None) -> None:
        """In place of `optimizer.step()`: run the update, or `step`, which is False where the step was skipped.

        In an epoch that was trained on already it is none.
        """
        if self._resume is not None:
            return
        self._updates += 1
        scaler = self.compiled.update.loss_scaler
        before = scaler.scale
        if not (step or self.compiled.update.step)():
            self._skipped = True
            self._warn_once("overflow", "gradients overflowed: this step is skipped, and so will be others")
            self._metrics["skipped_steps"] = scaler.skipped_steps
        if scaler.scale != before:
            self._metrics["loss_scale"] = scaler.scale

    def profile(self, first: int, last: int, path: Path | None = None) -> None:
        """Write what the steps `first` to `last` were in device time, once the last of them has ended."""
        root = self._process.run_directory.root
        if first <= self.step:
            raise ValueError(f"a profile from step {first} on cannot be made any more: step {self.step} has ended")
        self.profiles.append(Profile(first, last, path or root / f"profile_{first}_{last}.json", self.recorder))

    def log_metrics(self, values: dict[str, float]) -> None:
        """Values of the step in progress, or of the last one where none is."""
        if self._resume is not None:  # recorded before the run was cut off
            return
        if self._updates:
            self._metrics.update(values)
        else:
            self.recorder.values(self.step, values)

    def save_to(self, folder: Path, extra: JsonValue) -> None:
        """Save a checkpoint to a folder of the script's choice: at the end of the step in progress, beside training;
        where there is none it is there when this returns."""
        if self._resume is not None:  # saved before the run was cut off
            return
        self._asked_for.append((folder, extra))
        if not self._updates:
            self._save_asked_for()
            self._saver.wait()

    def end_step(self) -> None:
        """End the step in progress, if the optimizer made one: metrics, checkpoint, signals."""
        if self._updates:
            self._count_step()
            self._save_asked_for()
            if self._checkpoint_is_due():
                self._save()
        self._announce()
        if self._batches_counted == self.compiled.model.batches_trained:  # not while gradients are accumulated
            self._heed_signals()

    def finish(self) -> None:
        """At the context's exit: end the last step, save it, and say how training went."""
        if self._resume is not None:
            self.recorder.warning(f"the script ended before it came to {self._shown(self._resume.checkpoint.folder)}")
            self._put_back(0)
        self.end_step()
        if self._settings.checkpoint_steps and self.step > self._saved_step:
            self._save()
        self._saver.wait()
        self._announce()
        for profile in self.profiles:
            profile.end(self.step)
        self.recorder.finished(self.step, self.compiled.update.loss_scaler)

    def close(self) -> None:
        """However the run ended: a checkpoint that is being written is completed."""
        try:
            self._saver.wait()
        except ReportedError as error:
            self.recorder.warning(error.report.message)
        self._announce()
        self.recorder.close()

    def _count_step(self) -> None:
        if self._faults.loses_system(self.step + 1):
            self._saver.wait()  # the hosts that save live on
            self._announce()
            self._faults.lose(self.step + 1)
        self.step += 1
        self._process.last_step = self.step
        loss = self.compiled.loss.take()
        if loss is None:
            self._warn_once("no loss", "no loss was seen: the loop does not call the criterion given to compile")
        values = self._metrics if loss is None else {**self._metrics, "loss": loss}
        batches = self.compiled.model.batches_trained - self._batches_counted
        self.recorder.step(self.step, batches * self.compiled.manifest.batch_size, values)
        self._batches_counted += batches
        self._metrics, self._updates = {}, 0
        if not self._position.epochs:
            self._position.begin_epoch()
            unasked = (
                "the loop takes no batch from the training loader, so steps, metrics and checkpoints are those of one"
            )
            self._warn_once("unasked", f"{unasked} step: iterate the loader that was given to compile")
        self._position.update(trained=True)
        trained = self.compiled.clock.take_steps()
        for profile in self.profiles:
            profile.step(self.step, trained)
        self._heed_non_finite(loss)

    def _heed_non_finite(self, loss: float | None) -> None:
        """Raise `ReportedError` where the step was not finite, unless it is only to be warned of.

        One that was skipped did no harm, but so many in a row are not mended by a loss scale.
        """
        found, skipped = self.compiled.engine.take_found(), self._skipped
        self._skipped = False
        if found is None and (loss is None or math.isfinite(loss)):
            self._skipped_in_a_row = 0
            return
        self._skipped_in_a_row += skipped
        report = not_finite(self.step, loss, found, self._saved_step)
        if self._settings.on_nan == "fail" and (not skipped or self._skipped_in_a_row >= SKIPPED_IN_A_ROW_LIMIT):
            raise ReportedError(report)
        place = f" ({report.file}:{report.line})" if report.file else ""
        self._warn_once("not finite", report.message + place)

    def _checkpoint_is_due(self) -> bool:
        every = self._settings.checkpoint_steps
        return bool(every) and (self.step % every == 0 or self._is_last_step())

    def _is_last_step(self) -> bool:
        return self._settings.max_steps is not None and self.step >= self._settings.max_steps

    def _save(self) -> None:
        """Copy the state and begin to write it."""
        directory, settings = self._process.run_directory, self._settings
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        (directory.checkpoints / ".cerebrasignore").write_text("*\n", encoding="utf-8")  # no bundle carries them
        rule = KeepRule(settings.keep_checkpoints, settings.keep_checkpoints_every)
        self._saver.save(directory.checkpoint(self.step), self._snapshot(dict(self.user_state) or None), rule)
        self._saved_step = self.step

    def _save_asked_for(self) -> None:
        asked_for, self._asked_for = self._asked_for, []
        for folder, extra in asked_for:
            snapshot = self._snapshot((dict(self.user_state) or None) if extra is None else extra)
            self._saver.save(folder, snapshot, KeepRule())

    def _snapshot(self, extra: JsonValue) -> Snapshot:
        batch_size = self.compiled.manifest.batch_size
        place = Place(self.step, self._position, self._loader.seed, batch_size)
        # Another machine, whose clock was ahead, may have saved the one before: this one is newer all the same.
        self._saved_at = max(time.time(), self._saved_at + CLOCK_TICK_SECONDS)
        return snapshot_of(self.compiled, place, extra, self._saved_at)

    def _announce(self) -> None:
        root = self._process.run_directory
        for saved in self._saver.take_saved():
            if saved.folder.parent == root.checkpoints:
                self.recorder.checkpoint(saved.step, saved.folder, root.root)

    def _heed_signals(self) -> None:
        asked = self._process.stop_requested or self._process.checkpoint_requested
        if asked and self._resume is None and self.step > self._saved_step:
            self._save()
        self._process.checkpoint_requested = False
        if self._process.stop_requested:
            self._saver.wait()
            self._announce()
            raise RunStopped

    def _refuse_endless_loop(self) -> None:
        self._empty_epochs += 1
        if self._empty_epochs > EMPTY_EPOCHS_LIMIT:
            raise RuntimeError(
                f"the loop goes on although max_steps ({self.step}) is reached: from there on the training loader"
                " yields nothing; bound the loop by epochs, or by no more than max_steps"
            )

    def _say_dropped(self, samples: int) -> None:
        size = self.compiled.manifest.batch_size
        self._warn_once("ragged", f"dropped a batch of {samples} samples: the model is compiled for {size}")

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._said:
            self._said.add(subject)
            self.recorder.warning(f"{message} (said once)")
