"""What of a run is written down: events for the services, lines for people, by both clocks and never mixed."""

import time
from pathlib import Path

from cerebras_contract.events import (
    CheckpointEvent,
    FileEvent,
    MetricEvent,
    ProgressEvent,
    TrainingStartsEvent,
    WarningEvent,
)
from cerebras_pytorch.events import EventWriter
from cerebras_pytorch.log import logger
from cerebras_pytorch.memory import PeakMemory
from cerebras_pytorch.process import Process
from cerebras_pytorch.settings import RunSettings
from cerebras_pytorch.training.input_wait import InputWait
from cerebras_pytorch.training.progress import bar_of
from cerebras_pytorch.training.summary import SummaryFile
from cerebras_pytorch.training.tensorboard import EventFiles
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.loss_scale import LossScaler


class RateMeter:
    """Samples a second of wall time, since the start and since the last look."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.samples = self._last_samples = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def add(self, samples: int) -> None:
        self.samples += samples

    def since_last(self) -> float:
        """The rate since this was last asked."""
        now = time.monotonic()
        rate = (self.samples - self._last_samples) / max(now - self._last, 1e-9)
        self._last, self._last_samples = now, self.samples
        return rate

    def since_start(self) -> float:
        return self.samples / max(self.seconds, 1e-9)


class Recorder:
    """Writes events and log lines of one run. On target CPU there is no device time in them."""

    def __init__(
        self, process: Process, settings: RunSettings, events: EventWriter, clock: DeviceClock, memory: PeakMemory
    ) -> None:
        self._settings = settings
        self._root = process.run_directory.root
        self._events = events
        self._clock = clock
        self.memory = memory
        self._memory_is_passed = False
        self.input_wait = InputWait()
        self._input_is_told = False
        self._rates = RateMeter()
        self._first_step = self._logged_step = self._checkpoints = self._warnings = 0
        self._last_loss = "none"
        self._event_files = None
        self._bar = bar_of(process, settings.max_steps)
        self._summary = process.summary = SummaryFile(process.run_directory.summary)
        if settings.tensorboard and process.stage is None:
            self._event_files = EventFiles(Path(settings.tensorboard))
        elif settings.tensorboard:
            self.warning("event files of TensorBoard are for runs by hand: of a job, metrics are kept instead")

    def training_starts(self, log_offset_bytes: int) -> None:
        self._events.append(TrainingStartsEvent, log_offset_bytes=log_offset_bytes)
        self.wrote(self._summary.path)

    def goes_on_from(self, step: int) -> None:
        """The first step that is trained is the one after this."""
        self._first_step = self._logged_step = step
        self._summary.starts_from(step)

    def step(self, step: int, samples: int, values: dict[str, float]) -> None:
        """A step of training has ended, with these values of its metrics."""
        self._rates.add(samples)
        self.input_wait.steps += 1
        if "loss" in values:
            self._last_loss = f"{values['loss']:.5f}"
        if values:
            self._metrics(step, values)
        if self._bar:
            self._bar.step(step, self._last_loss, self._rates.since_start())
        if step % self._settings.log_steps == 0 or step == self._settings.max_steps:
            self._progress(step)

    def values(self, step: int, values: dict[str, float]) -> None:
        """Values outside of a step, such as an accuracy."""
        self._metrics(step, values)
        described = ", ".join(f"{name}={value:.5g}" for name, value in values.items())
        logger.info(f"| Metrics Device={self._settings.target_device}, Step={step}, {described}")

    def checkpoint(self, step: int, folder: Path, root: Path) -> None:
        """A checkpoint is complete in `folder`, inside the run directory `root`."""
        path = folder.relative_to(root)
        self._checkpoints += 1
        self._summary.reached(step)
        self.wrote(self._summary.path)  # first: who goes on from the checkpoint knows of this attempt
        keep, keep_every = self._settings.keep_checkpoints, self._settings.keep_checkpoints_every
        self._events.append(CheckpointEvent, step=step, path=str(path), keep=keep, keep_every=keep_every)
        logger.info(f"Saved checkpoint at step {step}: {path}")

    def wrote(self, path: Path) -> None:
        """A file is complete that a job is to keep, if it is in the run directory."""
        if path.resolve().is_relative_to(self._root.resolve()):
            self._events.append(FileEvent, path=path.resolve().relative_to(self._root.resolve()).as_posix())

    def warning(self, message: str) -> None:
        self._warnings += 1
        logger.warning(message)
        self._events.append(WarningEvent, message=message)

    def finished(self, step: int, loss_scaler: LossScaler) -> None:
        """Training is over: report the last step, if it was not yet, and sum up."""
        if step > self._logged_step:
            self._progress(step)
        self._end_bar()
        skipped = f", {loss_scaler.skipped_steps} skipped for overflow" if loss_scaler.skipped_steps else ""
        skipped += f", last loss scale {loss_scaler.scale:g}" if loss_scaler.is_dynamic else ""
        trained = f"steps {self._first_step + 1} to {step}" if step > self._first_step else "no step"
        logger.info("Training completed successfully!")
        logger.info(f"Processed {self._rates.samples} training sample(s) in {self._rates.seconds:.3f} seconds.")
        logger.info(
            f"Training finished: {trained}{skipped}, last loss {self._last_loss},"
            f" {self._rates_text(self._rates.since_start())}; {_counted(self._checkpoints, 'checkpoint')} saved,"
            f" {_counted(self._warnings, 'warning')}"
        )
        logger.info(f"Peak memory of this process: {self.memory}")
        logger.info(f"Waited for input: {self.input_wait}")
        if self._settings.has_device_time:
            logger.info(self._device_summary())

    def close(self) -> None:
        """However the run ended."""
        self._end_bar()
        if self._event_files:
            self._event_files.close()

    def _end_bar(self) -> None:
        if self._bar:
            self._bar.close()

    def _device_summary(self) -> str:
        clock, counters = self._clock, self._clock.counters
        shares = {bound: cycles / counters.cycles for bound, cycles in counters.stalled_cycles.items()}
        waits = [f"{bound} {share:.0%}" for bound, share in shares.items() if share >= 0.005]
        return (
            f"Device time {clock.seconds:.3f} s (simulated): utilization {counters.utilization:.2%},"
            f" waits for {', '.join(waits) or 'nothing'}, {clock.watts / 1000:.1f} kW a system"
        )

    def _metrics(self, step: int, values: dict[str, float]) -> None:
        seconds = self._clock.seconds if self._settings.has_device_time else None
        self._events.append(MetricEvent, step=step, values=values, device_seconds=seconds)
        if self._event_files:
            self._event_files.add(step, values)

    def _progress(self, step: int) -> None:
        self._logged_step = step
        rate, global_rate = self._rates.since_last(), self._rates.since_start()
        logger.info(
            f"| Train Device={self._settings.target_device}, Step={step}, Loss={self._last_loss},"
            f" {self._rates_text(rate, f', GlobalRate={global_rate:.2f} samples/sec')}"
        )
        self._events.append(
            ProgressEvent,
            step=step,
            max_steps=self._settings.max_steps,
            wall_samples_per_second=rate,
            device_samples_per_second=self._device_rate(),
            input_wait_share=self._look_at_input(),
        )
        self._summary.reached(step)
        if self.memory.is_passed and not self._memory_is_passed:
            self._memory_is_passed = True
            self.warning(f"this process holds more than its step takes, as data of the script does: {self.memory}")
        if self._event_files:
            self._event_files.add(step, {"rate/wall_samples_per_second": rate})
        if self._settings.has_device_time:
            self._metrics(step, self._clock.readings())

    def _look_at_input(self) -> float:
        """The share of waiting since the last look; where it is large, a warning says so once."""
        bottleneck, share = self.input_wait.bottleneck(), self.input_wait.look()
        if bottleneck and not self._input_is_told:
            self._input_is_told = True
            self.warning(bottleneck)
        return share

    def _device_rate(self) -> float | None:
        """Samples a second of device time in training, by the plan."""
        plan = self._clock.plan
        return plan.batch_size / plan.step_seconds if self._settings.has_device_time else None

    def _rates_text(self, wall_rate: float, global_rate: str = "") -> str:
        device = self._device_rate()
        simulated = f", DeviceRate={device:.2f} samples/sec (simulated)" if device is not None else ""
        return f"Rate={wall_rate:.2f} samples/sec{global_rate}{simulated}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
