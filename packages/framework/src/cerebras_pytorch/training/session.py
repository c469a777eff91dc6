"""A training session: counts the steps of the user's loop and does what is due at the end of each.

A step ends when the loader is next asked for a batch, or at the context's exit: only there are checkpoints
written, signals heeded and max_steps reached.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_contract.events import CheckpointEvent, MetricEvent, ProgressEvent, WarningEvent
from cerebras_pytorch.capture.batch import divide, flat_tensors
from cerebras_pytorch.checkpoints.save import save_checkpoint
from cerebras_pytorch.endings import RunStopped
from cerebras_pytorch.events import EventWriter
from cerebras_pytorch.log import logger
from cerebras_pytorch.process import Process
from cerebras_pytorch.settings import RunSettings
from cerebras_pytorch.training.model import CompiledModel
from cerebras_pytorch.training.optimizer import CompiledUpdate
from cerebras_pytorch.training.rates import RateMeter
from cerebras_wafer.compiler.frontends.training_step import tensor_spec
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.execute import Engine


class TrainingSession:
    """One run of training from an artifact."""

    def __init__(
        self,
        process: Process,
        settings: RunSettings,
        events: EventWriter,
        manifest: Manifest,
        engine: Engine,
        clock: DeviceClock,
        model: CompiledModel,
        optimizer: Optimizer,
        update: CompiledUpdate,
        criterion: nn.Module,
    ) -> None:
        self.step = 0
        self._process = process
        self._settings = settings
        self._events = events
        self._manifest = manifest
        self._engine = engine
        self._clock = clock
        self._model = model
        self._optimizer = optimizer
        self._update = update
        self._criterion = criterion
        self._criterion_forward: Callable[..., Any] = criterion.forward
        self._rates = RateMeter()
        self._losses: list[float] = []
        self._metrics: dict[str, float] = {}
        self._last_loss: float | None = None
        self._samples_in_step = 0
        self._updates_in_step = 0
        self._saved_step = 0
        self._evaluations_seen = 0
        self._ragged_reported = False

    # What the user's loop calls.

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """One epoch of full batches, up to the last step. Asking for a batch ends the step before."""
        while True:
            self.end_step()
            if self._is_last_step():
                return
            batch = next(source, None)
            if batch is None:
                return
            if divide(batch).size != self._manifest.batch_size:
                self._report_ragged(divide(batch).size)
                continue
            self._samples_in_step += self._manifest.batch_size
            yield batch

    def optimizer_step(self) -> None:
        """In place of `optimizer.step()`."""
        skipped_before = self._update.skipped_steps
        self._update.step()
        self._updates_in_step += 1
        if self._update.skipped_steps == 1 and not skipped_before:
            self._warn("gradients overflowed: the step was skipped, and further ones are counted in skipped_steps")

    def criterion_forward(self, output: Any, target: Any, *rest: Any, **options: Any) -> Any:
        """In place of the criterion's forward: the compiled loss where shapes are those it was compiled for."""
        tensors = flat_tensors((output, target))
        specs = [(spec.shape, spec.dtype) for spec in (*self._manifest.outputs, *self._manifest.targets)]
        given = [(spec.shape, spec.dtype) for spec in (tensor_spec("", tensor) for tensor in tensors)]
        if rest or options or given != specs:
            return self._criterion_forward(output, target, *rest, **options)
        loss = self._engine.loss(self._loss_tensors(tensors))
        if loss.requires_grad:
            self._losses.append(loss.item())
        return loss

    def log_metrics(self, values: dict[str, float]) -> None:
        """Values of the step in progress, or of the last one where none is."""
        if self._updates_in_step:
            self._metrics.update(values)
            return
        self._add_evaluation_time()
        self._events.append(MetricEvent, step=self.step, values=values, device_seconds=self._device_seconds())
        described = ", ".join(f"{name}={value:.5g}" for name, value in values.items())
        logger.info(f"| Metrics Device={self._settings.target_device}, Step={self.step}, {described}")

    # What is due at the end of a step.

    def end_step(self) -> None:
        """End the step in progress, if the optimizer made one: metrics, log line, checkpoint, signals."""
        if self._updates_in_step:
            self._count_step()
            self._write_metrics()
            if self.step % self._settings.log_steps == 0 or self._is_last_step():
                self._log_progress()
            if self._checkpoint_is_due():
                self._save()
        self._heed_signals()

    def finish(self) -> None:
        """At the context's exit: end the last step, save it, and say how training went."""
        self.end_step()
        if self._settings.checkpoint_steps and self.step > self._saved_step:
            self._save()
        skipped = f", {self._update.skipped_steps} skipped for overflow" if self._update.skipped_steps else ""
        loss = f", last loss {self._last_loss:.5f}" if self._last_loss is not None else ""
        logger.info(
            f"Training finished: {self.step} steps{skipped}{loss}, {self._rates_text(self._rates.since_start())}"
        )

    def _count_step(self) -> None:
        self.step += 1
        self._process.last_step = self.step
        self._clock.advance_step()
        self._add_evaluation_time()
        self._rates.add(self._samples_in_step)
        self._samples_in_step = self._updates_in_step = 0

    def _write_metrics(self) -> None:
        values = dict(self._metrics)
        if self._losses:
            self._last_loss = values["loss"] = sum(self._losses) / len(self._losses)
        self._losses, self._metrics = [], {}
        if values:
            self._events.append(MetricEvent, step=self.step, values=values, device_seconds=self._device_seconds())

    def _log_progress(self) -> None:
        rate, since_start = self._rates.since_last(), self._rates.since_start()
        loss = f"{self._last_loss:.5f}" if self._last_loss is not None else "none"
        logger.info(
            f"| Train Device={self._settings.target_device}, Step={self.step}, Loss={loss}, {self._rates_text(rate)},"
            f" GlobalRate={since_start:.2f} samples/sec"
        )
        self._events.append(
            ProgressEvent,
            step=self.step,
            max_steps=self._settings.max_steps,
            wall_samples_per_second=rate,
            device_samples_per_second=self._device_rate(),
        )

    def _rates_text(self, wall_rate: float) -> str:
        device = self._device_rate()
        simulated = f", DeviceRate={device:.2f} samples/sec (simulated)" if device is not None else ""
        return f"Rate={wall_rate:.2f} samples/sec{simulated}"

    def _checkpoint_is_due(self) -> bool:
        every = self._settings.checkpoint_steps
        return bool(every) and (self.step % every == 0 or self.step == self._settings.max_steps)

    def _save(self) -> None:
        folder = self._process.run_directory.checkpoint(self.step)
        save_checkpoint(folder, self.step, self._manifest, self._model.model, self._optimizer, self._update.tensors())
        self._saved_step = self.step
        self._events.append(
            CheckpointEvent, step=self.step, path=str(folder.relative_to(self._process.run_directory.root))
        )
        logger.info(f"Saved checkpoint at step {self.step}: {folder.parent.name}/{folder.name}")

    def _heed_signals(self) -> None:
        if (self._process.stop_requested or self._process.checkpoint_requested) and self.step > self._saved_step:
            self._save()
        self._process.checkpoint_requested = False
        if self._process.stop_requested:
            raise RunStopped

    def _is_last_step(self) -> bool:
        return self._settings.max_steps is not None and self.step >= self._settings.max_steps

    # Device time.

    def _device_seconds(self) -> float | None:
        return self._clock.seconds if self._settings.has_device_time else None

    def _device_rate(self) -> float | None:
        """Samples a second of device time in training, by the plan."""
        plan = self._clock.plan
        return plan.batch_size / plan.step_seconds if self._settings.has_device_time else None

    def _add_evaluation_time(self) -> None:
        for _ in range(self._model.evaluations - self._evaluations_seen):
            self._clock.advance_evaluation()
        self._evaluations_seen = self._model.evaluations

    # Small helpers.

    def _loss_tensors(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        outputs = len(self._manifest.outputs)
        roles = [f"output:{n}" if n < outputs else f"target:{n - outputs}" for n in range(len(tensors))]
        own = {f"buffer:{name}": buffer for name, buffer in self._criterion.named_buffers()}
        own |= {f"parameter:{name}": parameter for name, parameter in self._criterion.named_parameters()}
        return {**dict(zip(roles, tensors, strict=True)), **own}

    def _report_ragged(self, rows: int) -> None:
        if self._ragged_reported:
            return
        self._ragged_reported = True
        self._warn(
            f"dropped a batch of {rows} samples: the model is compiled for {self._manifest.batch_size}"
            " (said once; every epoch drops its ragged batch)"
        )

    def _warn(self, message: str) -> None:
        logger.warning(message)
        self._events.append(WarningEvent, message=message)
