"""Start training from the artifact: load it, check that it fits, and put it in the place of the user's parts."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import KERNELS_FILE, Manifest, TensorSpec
from cerebras_contract.faults import FaultPlan
from cerebras_contract.plans import Mode, Plan
from cerebras_contract.states import StageKind
from cerebras_contract.systems import load_system
from cerebras_pytorch.capture.batch import Batch, specs_of
from cerebras_pytorch.capture.optimizer import constants_of
from cerebras_pytorch.data.loader import DataLoader
from cerebras_pytorch.deferred.tape import Tape
from cerebras_pytorch.events import EventWriter
from cerebras_pytorch.memory import PeakMemory, freed_memory_kept
from cerebras_pytorch.nn import bare_module
from cerebras_pytorch.process import Process
from cerebras_pytorch.settings import RunSettings
from cerebras_pytorch.training.faults import Faults
from cerebras_pytorch.training.loss import CompiledLoss
from cerebras_pytorch.training.model import CompiledModel
from cerebras_pytorch.training.optimizer import CompiledUpdate, replace_step
from cerebras_pytorch.training.recorder import Recorder
from cerebras_pytorch.training.resume import checkpoint_to_begin_from
from cerebras_pytorch.training.session import TrainingSession
from cerebras_pytorch.training.state import CompiledStep
from cerebras_pytorch.training.trained import Trained
from cerebras_pytorch.training.watch import progress_watched
from cerebras_pytorch.training.whole_step import WholeStep
from cerebras_wafer.compiler.frontends.training_step import CompileOptions, tensor_spec
from cerebras_wafer.compiler.ir.text import parse_graph
from cerebras_wafer.errors import ArtifactMismatch
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.execute import Engine
from cerebras_wafer.simulator.faults import FaultyPlans
from cerebras_wafer.simulator.load import Artifact, load_artifact
from cerebras_wafer.simulator.loss_scale import LossScaler
from cerebras_wafer.simulator.store import MappedMemory, Memory, ResidentMemory
from cerebras_wafer.simulator.streaming import Streamer
from cerebras_wafer.simulator.update import Updater


@dataclass(frozen=True)
class Parts:
    """What the user gave to `compile`: the parts that are trained, and the first batch."""

    model: nn.Module
    optimizer: Optimizer
    criterion: nn.Module
    loader: DataLoader
    batch: Batch
    options: CompileOptions
    tape: Tape = field(default_factory=Tape)
    """How a model on the meta device is initialised."""
    faults: FaultPlan | None = None
    loss_scaler: LossScaler = field(default_factory=LossScaler)


def start_training(
    process: Process, settings: RunSettings, events: EventWriter, parts: Parts, put_back: ExitStack
) -> tuple[TrainingSession, CompiledModel]:
    """A session and the compiled model, until `put_back` is closed.

    Raises `ArtifactMismatch` where the artifact does not fit the parts, `ReportedError` where the model has no values.
    """
    artifact = load_artifact(process.run_directory.compile)
    put_back.enter_context(freed_memory_kept())
    memory = PeakMemory(artifact.plan.memory.host_peak_bytes, _moved_bytes(artifact, parts.model))
    _check(artifact.manifest, parts)
    memory_of = _memory(process, artifact)
    trained = Trained(bare_module(parts.model), parts.optimizer, artifact.manifest, memory_of, parts.tape)
    streamer = Streamer(artifact.plan, trained.store) if trained.is_streamed else None
    engine = Engine(artifact, settings.seed, parts.loss_scaler, streamer, find_non_finite=settings.find_nan)
    clock = _clock(artifact, parts.options)
    compiled = CompiledStep(
        manifest=artifact.manifest,
        model=CompiledModel(parts.model, engine, artifact.manifest, clock, trained),
        loss=CompiledLoss(parts.criterion, engine, artifact.manifest),
        trained=trained,
        update=CompiledUpdate(
            parts.optimizer, trained, Updater(artifact, trained.store), artifact.manifest, parts.loss_scaler
        ),
        optimizer=parts.optimizer,
        engine=engine,
        streamer=streamer,
        clock=clock,
    )
    put_back.enter_context(
        progress_watched(process, settings.deadlock_timeout_seconds, lambda: (process.last_step, clock.cycles))
    )
    recorder = Recorder(process, settings, events, clock, memory)
    plans = partial(_faulty_plans, process, parts, artifact.plan)
    faults = Faults(process, parts.faults or FaultPlan(), plans, clock, recorder.warning)
    session = TrainingSession(process, settings, compiled, recorder, parts.loader, faults)
    if settings.profile_steps:
        session.profile(*settings.profile_steps)
    compiled.model.whole_step = WholeStep(compiled, session.optimizer_step)
    put_back.callback(setattr, compiled.model, "whole_step", None)
    put_back.callback(session.close)
    _put_in_place(parts, compiled, session, put_back)
    process.artifact_key = artifact.manifest.artifact_key
    process.training = True
    if process.stage == StageKind.EXECUTE:
        recorder.training_starts(process.log_size_bytes())
    begin = checkpoint_to_begin_from(process, settings, recorder.warning)
    if begin is not None:
        session.go_on_from(*begin)
    return session, compiled.model


def _faulty_plans(process: Process, parts: Parts, plan: Plan) -> FaultyPlans:
    """The artifact's kernel graph is planned anew for what goes wrong."""
    graph = parse_graph((process.run_directory.compile / KERNELS_FILE).read_text(encoding="utf-8"))
    return FaultyPlans(plan, graph, parts.options, load_system(parts.options.system))


def _moved_bytes(artifact: Artifact, model: nn.Module) -> int:
    """What the process holds of the model already, where that stays in it."""
    if artifact.plan.mode == Mode.WEIGHT_STREAMING:
        return 0
    return sum(parameter.nbytes for parameter in model.parameters() if not parameter.is_meta)


def _memory(process: Process, artifact: Artifact) -> Callable[[int], Memory]:
    """In weight streaming what is trained lies in a file of the run directory; pipelined, everything is resident."""
    if artifact.plan.mode == Mode.PIPELINED:
        return ResidentMemory
    return partial(MappedMemory, process.run_directory.root)


def _clock(artifact: Artifact, options: CompileOptions) -> DeviceClock:
    half = options.precision.compute_dtype.is_half
    return DeviceClock(artifact.plan, load_system(options.system), half_precision=half)


def _put_in_place(parts: Parts, compiled: CompiledStep, session: TrainingSession, put_back: ExitStack) -> None:
    """Let the user's loop call the compiled parts; `put_back` undoes it."""
    for owner, name in ((parts.optimizer, "step"), (parts.criterion, "forward")):
        if name in vars(owner):  # a scheduler's wrapper
            put_back.callback(setattr, owner, name, vars(owner)[name])
        else:
            put_back.callback(delattr, owner, name)
    replace_step(parts.optimizer, session.optimizer_step)
    parts.criterion.forward = compiled.loss
    parts.loader.attach(session)
    put_back.callback(parts.loader.attach, None)


def _check(manifest: Manifest, parts: Parts) -> None:
    """Compare what was compiled with what is run, part by part."""
    bare = bare_module(parts.model)
    optimizer = [{k: v for k, v in group.items() if k != "parameters"} for group in manifest.optimizer.groups]
    pairs = [
        *_named("parameter", manifest.parameters, _specs(bare.named_parameters(remove_duplicate=False))),
        *_named("buffer", manifest.buffers, _specs(bare.named_buffers(remove_duplicate=False))),
        *_named("input", manifest.inputs, specs_of(parts.batch.inputs)),
        *_named("target", manifest.targets, specs_of(parts.batch.target)),
        ("optimizer", manifest.optimizer.name, type(parts.optimizer).__name__),
        ("hyperparameters of the optimizer", str(optimizer), str(constants_of(parts.optimizer))),
        ("precision", str(manifest.precision), str(parts.options.precision)),
        ("system", manifest.system, load_system(parts.options.system).name),
        ("num_csx", str(manifest.num_csx), str(parts.options.num_csx)),
    ]
    differing = [
        f"{what}: compiled {compiled}, running {running}" for what, compiled, running in pairs if compiled != running
    ]
    if differing:
        shown = "; ".join(differing[:5]) + (f"; and {len(differing) - 5} more" if len(differing) > 5 else "")
        raise ArtifactMismatch(
            f"the artifact {manifest.artifact_key} does not fit this script: {shown}",
            "The script must build the same model, optimizer and batches in both phases.",
        )


def _specs(named: Iterable[tuple[str, Tensor]]) -> list[TensorSpec]:
    return [tensor_spec(name, tensor) for name, tensor in named]


def _named(kind: str, compiled: list[TensorSpec], running: list[TensorSpec]) -> list[tuple[str, str, str]]:
    """Pairs of descriptions by name; a name that only one side has is paired with `none`."""
    before, now = ({spec.name: str(spec) for spec in side} for side in (compiled, running))
    return [(kind, before.get(name, "none"), now.get(name, "none")) for name in dict.fromkeys([*before, *now])]
