"""The context: what a script's run is made of, from `init_context` to its exit."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import JsonValue

from cerebras_contract.configuration import RunConfigSection, RunConfiguration
from cerebras_contract.configuration_reader import read_configuration
from cerebras_contract.errors import ReportedError
from cerebras_contract.run_directory import StageResult
from cerebras_contract.systems import load_system
from cerebras_pytorch.checkpoints import Checkpoint, read_checkpoint
from cerebras_pytorch.checkpoints.folder import bring_back
from cerebras_pytorch.deferred.record import Recorder, recording
from cerebras_pytorch.deferred.tape import Tape
from cerebras_pytorch.endings import CompilePhaseEnd, RunStopped
from cerebras_pytorch.events import EventWriter
from cerebras_pytorch.failures import known_failure, result_by_hand
from cerebras_pytorch.log import logger, set_up_log
from cerebras_pytorch.process import Process, current_process
from cerebras_pytorch.settings import RunSettings, resolve
from cerebras_pytorch.signals import STOPPED_STATUS, heeding_sigterm
from cerebras_pytorch.training.session import TrainingSession
from cerebras_wafer.simulator.store import Memory


class Context:
    """One run of a script: its parameters, its settings, and, once compiled, its training session."""

    def __init__(self, process: Process, config: Path | None) -> None:
        self.process = process
        self._from_job = process.configuration
        self._from_file = read_configuration(config) if config else None
        self._from_script = RunConfigSection()
        self.session: TrainingSession | None = None
        self.put_back = ExitStack()
        self.recorder = Recorder(Tape(), draws_matter=not process.planning)
        self.events = EventWriter(process.run_directory.events)

    @property
    def params(self) -> dict[str, Any]:
        """The sections of run.yaml (`model`, `optimizer`, `train_input`, `eval_input`, `runconfig`).

        A section that is not there is empty; so is everything where there is no file.
        """
        sections: defaultdict[str, Any] = defaultdict(dict)
        for source in (self._from_file, self._from_job):
            for name, section in source.said().items() if source else ():
                if section:
                    sections[name] = {**sections[name], **section}
        return sections

    @property
    def user_state(self) -> dict[str, JsonValue]:
        """What the script wants to find again after a resume, as its best accuracy so far: any JSON.

        It rides along in every checkpoint. Available once `compile` has returned.
        """
        if self.session is None:
            raise RuntimeError("user_state is there once compile has returned")
        return self.session.user_state

    @property
    def configuration(self) -> RunConfiguration:
        """What the job's configuration and the script's file say together."""
        return RunConfiguration.model_validate(self.params)

    @property
    def settings(self) -> RunSettings:
        """What is decided: the job's configuration first, then the script's file, then `set_run_config`."""
        from_file = [self._from_file.runconfig] if self._from_file else []
        return resolve(self._from_job.runconfig, *from_file, self._from_script)

    def set_run_config(self, config: RunConfigSection) -> None:
        """Set what neither the command line nor run.yaml says. Call it before `compile`."""
        if self.session is not None:
            raise RuntimeError("set_run_config must be called before cerebras_pytorch.compile")
        self._from_script = RunConfigSection.model_validate(config.model_dump())
        load_system(self.settings.system)

    def announce(self) -> None:
        """Say where this run takes place."""
        settings = self.settings
        spec = load_system(settings.system)
        logger.info(
            f"Cerebras context: {self.process.stage or 'local'}, target {settings.target_device}, system {spec.name}"
            f" ({spec.engine}, {spec.processing_elements:,} PEs, emulated)"
        )


_active: Context | None = None


def active_context() -> Context:
    """The context that is open. Raises `RuntimeError` outside of one."""
    if _active is None:
        raise RuntimeError(
            "there is no open context: use this inside `with cerebras_pytorch.init_context() as context:`"
        )
    return _active


@contextmanager
def init_context(config: str | Path | None = None) -> Iterator[Context]:
    """Open the context of a run.

    `config` names a run.yaml for runs by hand; a submitted job's own configuration wins over it.
    """
    global _active
    if _active is not None:
        raise RuntimeError("a context is open already; a process has one at a time")
    set_up_log()
    sys.excepthook = _show_uncaught
    context = Context(current_process(), Path(config) if config is not None else None)
    context.process.begin()
    _active = context
    try:
        with heeding_sigterm(context.process), context.put_back, recording(context.recorder):
            context.announce()
            try:
                yield context
            except SystemExit as exit_:
                if not exit_.code:  # a script that says it is done
                    _finish(context)
                raise
            _finish(context)
    except BaseException as error:
        known = known_failure(error, context.process.stage) or error
        if context.process.stage is None and not _is_a_good_end(error):
            context.process.write_result(result_by_hand(known, context.process.last_step))
            if isinstance(error, RunStopped):
                raise SystemExit(STOPPED_STATUS) from None
        if known is not error:
            raise known from error
        raise
    finally:
        _active = None
        context.events.close()


def _is_a_good_end(error: BaseException) -> bool:
    return isinstance(error, CompilePhaseEnd) or (isinstance(error, SystemExit) and not error.code)


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A reported error that ends a script by hand is shown as its report; any other as Python does."""
    if isinstance(error, ReportedError):
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
    else:
        sys.__excepthook__(kind, error, trace)


def _finish(context: Context) -> None:
    """End the last step, save what is due, and, by hand, leave the result (for a job, `launch` does it)."""
    if context.session is None:
        return
    context.session.finish()
    if context.process.stage is None:
        step, key = context.process.last_step, context.process.artifact_key
        context.process.write_result(StageResult(status="succeeded", last_step=step, artifact_key=key))


def memory_of_training() -> Memory:
    """The memory of what is trained. Raises `RuntimeError` before `compile`."""
    return _session("this").compiled.trained.store.memory


def log_metrics(metrics: dict[str, Any]) -> None:
    """Record values other than the loss, by name: numbers or tensors of one element."""
    _session("log_metrics").log_metrics({name: _number(name, value) for name, value in metrics.items()})


def save(path: str | Path, extra: JsonValue = None) -> None:
    """Save a checkpoint to the folder `path`, from which `load` or `checkpoint_path` in run.yaml goes on.

    Within a step, after `optimizer.step()`, it is saved when the step ends: when the loader is next asked for a
    batch. `extra` rides along, in place of the context's `user_state`. Raises `ReportedError` where it cannot be
    written.
    """
    _session("save").save_to(Path(path), extra)


def profile(first_step: int, last_step: int, path: str | Path | None = None) -> None:
    """Write a profile of these steps, both included, in device time: a trace that Perfetto and Chrome open.

    Call it after `compile`; `profile_steps: [10, 12]` in run.yaml does the same. The file is `profile_10_12.json` in
    the run directory, unless `path` names another. It shows the steps as they were, faults and all.
    """
    _session("profile").profile(first_step, last_step, Path(path) if path is not None else None)


def load(path: str | Path, *, weights_only: bool = False) -> Checkpoint:
    """Go on from a checkpoint: call it after `compile` and before the loop.

    The weights are there at once; all other state is when the loop comes to the first batch that was not trained
    on, and until then the epochs that were yield nothing. `weights_only` begins anew, from its weights. Where the
    run goes on from a checkpoint of its own already (an attempt at a job after the first), it keeps to that.
    Raises `ReportedError` where the checkpoint is damaged or of another model.
    """
    session = _session("load")
    bring_back(Path(path))
    checkpoint = read_checkpoint(path)
    if weights_only:
        session.take_weights(checkpoint)
    else:
        session.go_on_from(checkpoint, own=False)
    return checkpoint


def _session(what: str) -> TrainingSession:
    context = active_context()
    if context.session is None:
        raise RuntimeError(f"{what} is for training: call it after compile")
    return context.session


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"the metric {name!r} is not one number but {value!r}") from None
