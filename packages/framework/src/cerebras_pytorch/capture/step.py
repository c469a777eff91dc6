"""Capture of a whole training step: forward, loss, backward, updates, and forward in eval mode."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from cerebras_pytorch.capture.batch import Batch, specs_of
from cerebras_pytorch.capture.fake import fake_mode, values_on_the_cpu
from cerebras_pytorch.capture.functional import Traced, trace
from cerebras_pytorch.capture.optimizer import (
    ParameterSlot,
    StateOnMeta,
    optimizer_spec,
    slots_of,
    state_elements,
    state_on_meta,
)
from cerebras_pytorch.capture.places import complete_places
from cerebras_pytorch.capture.update import capture_updates
from cerebras_wafer.compiler.frontends.flat import node_value, output_nodes
from cerebras_wafer.compiler.frontends.training_step import Program, TrainingStep, WaferStep, tensor_spec
from cerebras_wafer.errors import CompileError


def capture_step(model: nn.Module, criterion: nn.Module, optimizer: Optimizer, batch: Batch) -> TrainingStep:
    """Capture one training step of the bare module `model`. No weight is changed and no random number drawn.

    A model on the meta device is captured as if it were on the CPU.
    """
    step, slots, state, output_tree = _capture_on_the_wafer(model, criterion, optimizer, batch)
    with _no_collection(), fake_mode() as mode, values_on_the_cpu(mode, model):
        evaluate = _capture_evaluation(model, batch)
    complete_places(evaluate)
    with _no_collection(), fake_mode() as mode:
        updates = capture_updates(optimizer, slots, state, mode)
    with _train_mode(model):
        in_eval_mode = modules_in_eval_mode(model)
    return TrainingStep(
        **vars(step),
        updates=updates,
        evaluate=evaluate,
        in_eval_mode=tuple(in_eval_mode),
        output_tree=_written_tree(output_tree),
    )


def capture_wafer_step(model: nn.Module, criterion: nn.Module, optimizer: Optimizer, batch: Batch) -> WaferStep:
    """As `capture_step`, of what a plan is made from only: forward, loss and backward."""
    step, *_ = _capture_on_the_wafer(model, criterion, optimizer, batch)
    return step


def _capture_on_the_wafer(
    model: nn.Module, criterion: nn.Module, optimizer: Optimizer, batch: Batch
) -> tuple[WaferStep, list[ParameterSlot], StateOnMeta, pytree.TreeSpec]:
    """The step, the trained parameters in the optimizer's order, their state, and how the outputs are nested."""
    with _no_collection(), fake_mode() as mode, values_on_the_cpu(mode, model, criterion):
        joint = _capture_model(model, batch)
        outputs = _output_values(joint.program)
        loss = _capture_loss(criterion, joint, outputs, batch, mode)
    for program in (joint.program, loss):
        complete_places(program)
    trained = trained_names(joint.program)
    if not trained:
        raise CompileError("no parameter of the model has a gradient", advice="Nothing would be trained.")
    slots = slots_of(optimizer, parameters_by_name(model, trained))
    state = state_on_meta(optimizer, slots)
    step = WaferStep(
        joint=joint.program,
        loss=loss,
        parameters=tuple(tensor_spec(*named) for named in model.named_parameters(remove_duplicate=False)),
        trained=tuple(slot.name for slot in slots),
        buffers=tuple(tensor_spec(*named) for named in model.named_buffers(remove_duplicate=False)),
        inputs=tuple(specs_of(batch.inputs)),
        targets=tuple(specs_of(batch.target)),
        outputs=tuple(specs_of(outputs)),
        optimizer=optimizer_spec(optimizer, slots, state),
        state_elements=state_elements(state),
        tied=tied_names(model, trained),
        batch_size=batch.size,
    )
    return step, slots, state, joint.output_tree


def _input_role(number: int) -> str:
    return f"input:{number}"


def _capture_model(model: nn.Module, batch: Batch) -> Traced:
    """Forward and backward in train mode."""
    with _train_mode(model), torch.enable_grad():
        return trace(model, batch.inputs, _input_role)


def _capture_evaluation(model: nn.Module, batch: Batch) -> Program:
    """Forward in eval mode."""
    with _modes_kept(model), torch.no_grad():
        model.eval()
        return trace(model, batch.inputs, _input_role).program


def trained_names(joint: Program) -> list[str]:
    """Names of the parameters that have a gradient."""
    return [role.removeprefix("gradient:") for role in joint.outputs if role.startswith("gradient:")]


def tied_names(model: nn.Module, trained: list[str]) -> dict[str, str]:
    """For each further name of a parameter its first: the one that has the gradient, where one has."""
    by_parameter: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_parameter.setdefault(parameter, []).append(name)
    tied: dict[str, str] = {}
    for names in by_parameter.values():
        first = next((name for name in names if name in trained), names[0])
        tied |= {name: first for name in names if name != first}
    return tied


def parameters_by_name(model: nn.Module, names: list[str]) -> dict[nn.Parameter, str]:
    """The parameters of these names. Of a tied weight, one name has the gradient."""
    by_name = dict(model.named_parameters(remove_duplicate=False))
    return {by_name[name]: name for name in names}


def modules_in_eval_mode(model: nn.Module) -> list[str]:
    """Names of the modules that are in eval mode, such as a frozen BatchNorm in a model in train mode."""
    return [name for name, module in model.named_modules() if not module.training]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Look for no cycles of garbage meanwhile: a growing graph has none, and a tenth of the time went there."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _train_mode(model: nn.Module) -> Iterator[None]:
    """The modes of the modules as they are, if the model is in train mode; else train mode for all."""
    with _modes_kept(model):
        if not model.training:
            model.train()
        yield


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    """Put every module back in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def _output_values(joint: Program) -> list[Tensor]:
    """The fake tensors that stand for the model's outputs."""
    pairs = zip(output_nodes(joint.graph_module), joint.outputs, strict=True)
    return [node_value(node) for node, role in pairs if node is not None and role.startswith("output:")]


def _capture_loss(
    criterion: nn.Module, joint: Traced, outputs: list[Tensor], batch: Batch, mode: FakeTensorMode
) -> Program:
    """The criterion as a program of its own: outputs and target in, loss out."""
    count = len(outputs)

    def role(number: int) -> str:
        return f"output:{number}" if number < count else f"target:{number - count}"

    with mode:  # the logits of a language model would take gigabytes
        examples = [torch.empty(value.shape, dtype=value.dtype, device="cpu") for value in outputs]
    arguments = (pytree.tree_unflatten(examples, joint.output_tree), batch.target)
    with torch.no_grad():
        traced = trace(criterion, arguments, role).program
    values = [node_value(node) for node in output_nodes(traced.graph_module) if node is not None]
    if len(values) != 1 or values[0].numel() != 1:
        raise CompileError(
            f"the criterion {type(criterion).__name__} must return one number, not {_shapes(values)}",
            advice="Reduce the loss, with reduction='mean' for one.",
        )
    return Program(traced.graph_module, traced.inputs, ("loss:0",))


def _written_tree(tree: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(tree)
    except NotImplementedError:
        raise CompileError(
            "the model returns a type that an artifact cannot describe",
            advice="Let forward return a tensor, or tensors in a tuple, list or dictionary.",
        ) from None


def _shapes(values: list[Tensor]) -> Any:
    return [list(value.shape) for value in values]
