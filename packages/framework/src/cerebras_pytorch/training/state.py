"""The state that training goes on from: taken as a snapshot for a checkpoint, and put back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor
from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest, ProgramName
from cerebras_contract.checkpoints import MODEL_FILE, OPTIMIZER_FILE, TRAINING_FILE
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.optimizer import constants_of
from cerebras_pytorch.checkpoints.read import Checkpoint, invalid
from cerebras_pytorch.checkpoints.save import Snapshot
from cerebras_pytorch.checkpoints.tensor_file import LetGo, keep, read_into
from cerebras_pytorch.checkpoints.values import NotStorableError, from_json, to_json
from cerebras_pytorch.data.position import Position
from cerebras_pytorch.data.random_state import global_state, set_global_state
from cerebras_pytorch.nn import bare_module
from cerebras_pytorch.training.loss import CompiledLoss
from cerebras_pytorch.training.model import CompiledModel
from cerebras_pytorch.training.optimizer import CompiledUpdate
from cerebras_pytorch.training.schedulers import schedulers_of
from cerebras_pytorch.training.trained import Trained
from cerebras_wafer.compiler.frontends.training_step import tensor_spec
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.execute import Engine
from cerebras_wafer.simulator.store import MappedMemory
from cerebras_wafer.simulator.streaming import Streamer


@dataclass(frozen=True)
class CompiledStep:
    """The artifact's programs in the place of the user's parts."""

    manifest: Manifest
    model: CompiledModel
    loss: CompiledLoss
    trained: Trained
    update: CompiledUpdate
    optimizer: Optimizer
    engine: Engine
    streamer: Streamer | None
    clock: DeviceClock


@dataclass(frozen=True)
class Place:
    """Where training was: the number of its last step, its data so far, and the seed that they are drawn from."""

    step: int
    position: Position
    seed: int
    batch_size: int


def snapshot_of(compiled: CompiledStep, place: Place, extra: JsonValue, created_at: float) -> Snapshot:
    """A copy of everything. Raises `ReportedError` for a state that no checkpoint can hold."""
    tensors: dict[str, Tensor] = {}
    optimizer = compiled.optimizer
    state = {
        "epochs": place.position.as_plain(),
        "loader_seed": place.seed,
        "batch_size": place.batch_size,
        "loss_scale": compiled.update.loss_scaler.state_dict(),
        "parameter_groups": [_changing(optimizer, group) for group in optimizer.param_groups],
        "schedulers": [[type(one).__name__, one.state_dict()] for one in schedulers_of(optimizer)],
        "random": {"engine": compiled.engine.random_state, **global_state()},
        "clock": compiled.clock.state_dict(),
        "buffers": _other_buffers(compiled),
    }
    training, extra = _stored(state, tensors, "training"), _stored(extra, None, "extra")
    (model, own_state), let_go = _copies(compiled, _model_tensors(compiled), _optimizer_tensors(compiled))
    return Snapshot(
        step=place.step,
        artifact_key=compiled.manifest.artifact_key,
        model=model,
        optimizer_name=compiled.manifest.optimizer.name,
        hyperparameters=[
            {**constants, "lr": float(group["lr"])}
            for constants, group in zip(constants_of(optimizer), optimizer.param_groups, strict=True)
        ],
        optimizer=own_state,
        training=training,
        training_tensors=tensors,
        extra=extra,
        created_at=created_at,
        let_go=let_go,
    )


def _stored(value: Any, tensors: dict[str, Tensor] | None, place: str) -> JsonValue:
    try:
        return to_json(value, tensors, place)
    except NotStorableError as error:
        advice = "Give it as numbers, texts, lists and dictionaries."
        raise ReportedError(
            ErrorReport(code=ErrorCode.CHECKPOINT_NOT_SAVED, message=str(error), advice=advice)
        ) from None


def place_of(checkpoint: Checkpoint, batch_size: int) -> Place | None:
    """Where a checkpoint goes on; None where it has weights and no more."""
    if checkpoint.has_weights_only:
        return None
    state = _decoded(checkpoint)
    if state["batch_size"] != batch_size:
        raise _mismatch(
            checkpoint,
            TRAINING_FILE,
            f"saved with batches of {state['batch_size']}, and this trains with batches of {batch_size}, so that its"
            " place in the data cannot be found again",
            "Train with the same batch size, or begin anew from its weights alone: cbt.load(path, weights_only=True).",
        )
    return Place(checkpoint.step, Position.from_plain(state["epochs"]), state["loader_seed"], batch_size)


def restore_weights(compiled: CompiledStep, checkpoint: Checkpoint) -> None:
    """Put the model's parameters and buffers back. Raises `ReportedError` where they are of another model."""
    _refuse_other(checkpoint, MODEL_FILE, checkpoint.model, _model_tensors(compiled), "the model's")
    _read(compiled, checkpoint.folder / MODEL_FILE, _model_tensors(compiled))


def refuse_other_optimizer(compiled: CompiledStep, checkpoint: Checkpoint) -> None:
    """Raise `ReportedError` where a checkpoint's optimizer is not the one that trains."""
    before, now = checkpoint.manifest.optimizer, compiled.manifest.optimizer.name
    if checkpoint.optimizer is not None:
        tensors = _optimizer_tensors(compiled)
        _refuse_other(checkpoint, OPTIMIZER_FILE, checkpoint.optimizer, tensors, f"saved with {before}; {now}'s")


def restore(compiled: CompiledStep, checkpoint: Checkpoint) -> None:
    """Put everything back, so that the next step is the one after the checkpoint's."""
    restore_weights(compiled, checkpoint)
    if checkpoint.optimizer is None or checkpoint.has_weights_only:
        return
    optimizer, state = compiled.optimizer, _decoded(checkpoint)
    _refuse_other_schedulers(checkpoint, state["schedulers"], optimizer)
    refuse_other_optimizer(compiled, checkpoint)
    _read(compiled, checkpoint.folder / OPTIMIZER_FILE, _optimizer_tensors(compiled))
    _copy(_other_buffers(compiled), state["buffers"])
    for group, saved in zip(optimizer.param_groups, state["parameter_groups"], strict=True):
        _set(group, saved)
    for scheduler, (_, saved) in zip(schedulers_of(optimizer), state["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    compiled.update.loss_scaler.load_state_dict(state["loss_scale"])
    compiled.clock.load_state_dict(state["clock"])
    compiled.engine.random_state = state["random"]["engine"]
    set_global_state(state["random"])


def _decoded(checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        state: dict[str, Any] = from_json(checkpoint.training, checkpoint.training_tensors)
    except KeyError as missing:
        raise invalid(checkpoint.folder / TRAINING_FILE, f"names the tensor {missing}, which is not there") from None
    return state


def _model_tensors(compiled: CompiledStep) -> dict[str, Tensor]:
    state = bare_module(compiled.model.model).state_dict()
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _optimizer_tensors(compiled: CompiledStep) -> dict[str, Tensor]:
    roles = compiled.trained.tensors()
    return {role.removeprefix("state:"): value for role, value in roles.items() if role.startswith("state:")}


def _other_buffers(compiled: CompiledStep) -> dict[str, Tensor]:
    """Buffers that training changes and a state dict leaves out."""
    bare = bare_module(compiled.model.model)
    kept = bare.state_dict().keys()
    changed = {role.removeprefix("buffer:") for role in compiled.manifest.programs[ProgramName.FORWARD].outputs}
    return {name: value for name, value in bare.named_buffers() if name in changed and name not in kept}


def _changing(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """What schedulers change in a parameter group; the rest are constants of the compiled update."""
    constant = {"params", *optimizer.defaults} - {"lr"}
    return {name: value for name, value in group.items() if name not in constant}


def _set(group: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if isinstance(group.get(name), Tensor):
            group[name].fill_(value)
        else:
            group[name] = value


def _copies(compiled: CompiledStep, *groups: dict[str, Tensor]) -> tuple[list[dict[str, Tensor]], LetGo]:
    """Copies that share no storage, as the file format wants them (tied weights are written under each name).

    Of what lies in a file the copies do, too: the second result lets parts of them go.
    """
    memory = compiled.trained.store.memory
    if not isinstance(memory, MappedMemory):
        return [{name: _copied(tensor) for name, tensor in tensors.items()} for tensors in groups], keep
    streamed = {
        f"{number}:{name}": tensor.detach()
        for number, tensors in enumerate(groups)
        for name, tensor in tensors.items()
        if memory.holds(tensor)
    }
    copies, copied_to = memory.copies_of(streamed)
    return [
        {
            name: copies[key] if (key := f"{number}:{name}") in copies else _copied(tensor)
            for name, tensor in tensors.items()
        }
        for number, tensors in enumerate(groups)
    ], copied_to.let_go


def _copied(tensor: Tensor) -> Tensor:
    return torch.clone(tensor.detach(), memory_format=torch.contiguous_format)


def _read(compiled: CompiledStep, path: Path, places: dict[str, Tensor]) -> None:
    """Read what a checkpoint's file holds into the store, and into buffers."""
    with torch.no_grad():
        read_into(path, places, compiled.trained.store.memory.let_go)


def _copy(to: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in to.items():
            tensor.copy_(tensors[name])


def _refuse_other(
    checkpoint: Checkpoint, file: str, saved: dict[str, Tensor], now: dict[str, Tensor], whose: str
) -> None:
    for name in dict.fromkeys([*now, *saved]):
        there = str(tensor_spec(name, saved[name])) if name in saved else f"{name} is not there"
        here = str(tensor_spec(name, now[name])) if name in now else f"has no {name}"
        if there != here:
            raise _mismatch(
                checkpoint,
                file,
                f"{there}; {whose}: {here}",
                "A checkpoint goes on in a script that builds the same model and optimizer.",
            )


def _refuse_other_schedulers(checkpoint: Checkpoint, saved: list[tuple[str, Any]], optimizer: Optimizer) -> None:
    before, now = [name for name, _ in saved], [type(one).__name__ for one in schedulers_of(optimizer)]
    if before != now:
        raise _mismatch(
            checkpoint,
            TRAINING_FILE,
            f"saved with the schedulers {', '.join(before) or 'none'}; the script has {', '.join(now) or 'none'}",
            "Make the same schedulers, in the same order, before the loop.",
        )


def _mismatch(checkpoint: Checkpoint, file: str, message: str, advice: str) -> ReportedError:
    path = str(checkpoint.folder / file)
    return ReportedError(ErrorReport(code=ErrorCode.CHECKPOINT_MISMATCH, message=message, file=path, advice=advice))
