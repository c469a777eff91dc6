"""The optimizer's update as functional programs, with learning rates as data."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer

from cerebras_contract.artifacts import OptimizerSpec
from cerebras_pytorch.capture import adafactor
from cerebras_pytorch.capture.fake import fake_like
from cerebras_pytorch.capture.functional import trace
from cerebras_pytorch.capture.optimizer import ParameterSlot, learning_rates
from cerebras_wafer.compiler.frontends.training_step import Program, Update

# Optimizers whose update of a parameter reads nothing of another, so that parameters can be traced one by one.
ONE_BY_ONE = frozenset(
    {
        torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop,
        torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.Adafactor,
    }
)  # fmt: skip


def capture_updates(
    optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec, mode: FakeTensorMode
) -> tuple[Update, ...]:
    """The update as programs: parameters, gradients, state and rates in; parameters and state out.

    Parameters that are alike share one program: a model of 96 equal layers has more than a thousand parameters, and
    about ten that differ. An optimizer that is not known to update them one by one has one program for all.
    """
    if type(optimizer) not in ONE_BY_ONE:
        program = _trace(optimizer, slots, spec, mode)
        return (Update(program, calls=(tuple(slot.name for slot in slots),)),)
    alike: dict[tuple[Any, ...], list[ParameterSlot]] = {}
    for slot in slots:
        alike.setdefault(_shape(optimizer, slot, spec), []).append(slot)
    return tuple(
        Update(_trace(optimizer, group[:1], spec, mode), calls=tuple((slot.name,) for slot in group))
        for group in alike.values()
    )


def _shape(optimizer: Optimizer, slot: ParameterSlot, spec: OptimizerSpec) -> tuple[Any, ...]:
    """What two parameters have in common whose updates are the same program."""
    state = [(name, optimizer.state[slot.parameter][name]) for name in spec.state[slot.name]]
    tensors = [("", slot.parameter), *state]
    return slot.group, *((name, tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in tensors)


def _roles(optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec) -> list[str]:
    return [
        *(f"parameter:{number}" for number in range(len(slots))),
        *(f"gradient:{number}" for number in range(len(slots))),
        *(f"state:{number}/{name}" for number, slot in enumerate(slots) for name in spec.state[slot.name]),
        *(f"rate:{number}" for number in range(len(optimizer.param_groups))),
    ]


def _trace(optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec, mode: FakeTensorMode) -> Program:
    parameters = [fake_like(mode, slot.parameter) for slot in slots]
    gradients = [fake_like(mode, slot.parameter) for slot in slots]
    state = [
        [fake_like(mode, optimizer.state[slot.parameter][name]) for name in spec.state[slot.name]] for slot in slots
    ]
    roles = _roles(optimizer, slots, spec)
    arguments = (parameters, gradients, state, learning_rates(optimizer))
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
        with _steps_in_double(stepped):
            self._step(stepped)

    @staticmethod
    def _step(stepped: Optimizer) -> None:
        if type(stepped) is torch.optim.Adafactor:
            adafactor.step(stepped)
        else:
            type(stepped).step(stepped)  # the class's own: an instance may carry a scheduler's wrapper

    @staticmethod
    def _traceable(group: dict[str, Any], rate: Tensor) -> dict[str, Any]:
        """A group in the form of the implementation that can be traced: one parameter at a time, on tensors."""
        plain = {"foreach": False, "fused": False, "capturable": True}
        chosen = {name: value for name, value in plain.items() if name in group}
        return {**group, **chosen, "params": [], "lr": rate}


@contextmanager
def _steps_in_double(optimizer: Optimizer) -> Iterator[None]:
    """Count steps in float64 inside: Adam and its kin take 1 - beta**step, of which little is left in float32.

    Eager PyTorch computes it with Python's numbers.
    """
    states = [state for state in optimizer.state.values() if "step" in state]
    counts = [state["step"] for state in states]
    for state in states:
        state["step"] = state["step"].double()
    yield
    for state, count in zip(states, counts, strict=True):
        count.copy_(state["step"])
