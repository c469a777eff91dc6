"""Capture of the optimizer: its update as a functional program, with learning rates as data."""

import copy
import inspect
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import OptimizerSpec
from cerebras_pytorch.capture.functional import trace
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.errors import CompileError

# How an optimizer is implemented, not what it computes; the learning rate is data of the program.
NOT_CONSTANTS = frozenset({"lr", "foreach", "fused", "capturable", "differentiable"})


@dataclass(frozen=True)
class ParameterSlot:
    """A trained parameter in the order of the optimizer, and the number of its group."""

    name: str
    parameter: nn.Parameter
    group: int


def slots_of(optimizer: Optimizer, names: dict[nn.Parameter, str]) -> list[ParameterSlot]:
    """The optimizer's parameters that are trained: those in `names`, which have a gradient."""
    return [
        ParameterSlot(names[parameter], parameter, number)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter in names
    ]


def initialise_state(optimizer: Optimizer, slots: list[ParameterSlot]) -> None:
    """Make the state that the optimizer would make at its first step, so that the program can take it."""
    gradients = [slot.parameter.grad for slot in slots]
    for slot in slots:
        slot.parameter.grad = torch.zeros_like(slot.parameter)
    try:
        for group in optimizer.param_groups:
            collected = len(inspect.signature(optimizer._init_group).parameters) - 1  # type: ignore[attr-defined]
            optimizer._init_group(group, *([] for _ in range(collected)))  # type: ignore[attr-defined]
    except (AttributeError, TypeError) as error:
        raise CompileError(
            f"the optimizer {type(optimizer).__name__} cannot be compiled: {error}",
            advice="Use one of torch.optim's (SGD, Adam, AdamW, Adagrad, RMSprop, NAdam).",
        ) from error
    finally:
        for slot, gradient in zip(slots, gradients, strict=True):
            slot.parameter.grad = gradient
    if isinstance(optimizer, torch.optim.SGD):
        _start_momentum_at_zero(optimizer, slots)


def _start_momentum_at_zero(optimizer: torch.optim.SGD, slots: list[ParameterSlot]) -> None:
    """SGD begins its momentum with the first gradient: the same as from zero, if there is no dampening."""
    for slot in slots:
        group = optimizer.param_groups[slot.group]
        if not group["momentum"]:
            optimizer.state[slot.parameter].pop("momentum_buffer", None)
            continue
        if group["dampening"]:
            raise CompileError("SGD with dampening cannot be compiled", advice="Set dampening to 0.")
        if optimizer.state[slot.parameter].get("momentum_buffer") is None:
            optimizer.state[slot.parameter]["momentum_buffer"] = torch.zeros_like(slot.parameter)


def constants_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The hyperparameters of each group that are constants of the compiled update."""
    names = [name for name in optimizer.defaults if name not in NOT_CONSTANTS]
    return [{name: _plain(group.get(name)) for name in names} for group in optimizer.param_groups]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def learning_rates(optimizer: Optimizer) -> list[Tensor]:
    """The learning rate of each group, as the program takes it: a float64 scalar."""
    return [torch.tensor(float(group["lr"]), dtype=torch.float64) for group in optimizer.param_groups]


def optimizer_spec(optimizer: Optimizer, slots: list[ParameterSlot]) -> OptimizerSpec:
    groups = constants_of(optimizer)
    for number, group in enumerate(groups):
        group["parameters"] = [slot.name for slot in slots if slot.group == number]
    state = {slot.name: sorted(optimizer.state[slot.parameter]) for slot in slots}
    return OptimizerSpec(name=type(optimizer).__name__, groups=groups, state=state)


def capture_update(optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec) -> Program:
    """The update as a program: parameters, gradients, state and rates in; parameters and state out."""
    parameters = [slot.parameter.detach() for slot in slots]
    state = [[optimizer.state[slot.parameter][name] for name in spec.state[slot.name]] for slot in slots]
    arguments = (parameters, [torch.empty_like(p) for p in parameters], state, learning_rates(optimizer))
    roles = [
        *(f"parameter:{slot.name}" for slot in slots),
        *(f"gradient:{slot.name}" for slot in slots),
        *(f"state:{slot.name}/{name}" for slot in slots for name in spec.state[slot.name]),
        *(f"rate:{number}" for number in range(len(optimizer.param_groups))),
    ]
    with torch.no_grad():
        return trace(_Update(optimizer, slots, spec), arguments, lambda number: roles[number]).program


class _Update(nn.Module):
    """One step of a copy of the optimizer over tensors that are handed in."""

    def __init__(self, optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._slots = slots
        self._state_names = [spec.state[slot.name] for slot in slots]

    def forward(
        self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], rates: list[Tensor]
    ) -> None:
        stepped = copy.copy(self._optimizer)
        stepped.state = defaultdict(dict)
        stepped.param_groups = [self._traceable(group, rates[n]) for n, group in enumerate(stepped.param_groups)]
        for number, slot in enumerate(self._slots):
            parameter = parameters[number]
            parameter.grad = gradients[number]
            stepped.state[parameter] = dict(zip(self._state_names[number], state[number], strict=True))
            stepped.param_groups[slot.group]["params"].append(parameter)
        type(stepped).step(stepped)  # the class's own: an instance may carry a scheduler's wrapper

    @staticmethod
    def _traceable(group: dict[str, Any], rate: Tensor) -> dict[str, Any]:
        """A group in the form of the implementation that can be traced: one parameter at a time, on tensors."""
        plain = {"foreach": False, "fused": False, "capturable": True}
        chosen = {name: value for name, value in plain.items() if name in group}
        return {**group, **chosen, "params": [], "lr": rate}
