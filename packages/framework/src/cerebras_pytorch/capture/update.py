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

from cerebras_pytorch.capture import adafactor
from cerebras_pytorch.capture.fake import fake_like
from cerebras_pytorch.capture.functional import trace
from cerebras_pytorch.capture.optimizer import ParameterSlot, StateOnMeta, learning_rates
from cerebras_wafer.compiler.frontends.training_step import Program, Update

# Optimizers that do the same to every element of a parameter, whatever its neighbours are.
ELEMENTWISE = frozenset(
    {
        torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop,
        torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta,
    }
)  # fmt: skip
# Optimizers whose update of a parameter reads nothing of another, so that parameters can be traced one by one.
ONE_BY_ONE = frozenset({torch.optim.Adafactor})

TRACED_ELEMENTS = 64
"""Length of the flat tensors that an elementwise update is traced with; the program takes any."""


def capture_updates(
    optimizer: Optimizer, slots: list[ParameterSlot], state: StateOnMeta, mode: FakeTensorMode
) -> tuple[Update, ...]:
    """The update as programs: parameters, gradients, state and rates in; parameters and state out.

    Of an elementwise optimizer one program updates all parameters of a group, or any part of them, as flat tensors.
    Of another, parameters that are alike share a program, called for each. An optimizer that is not known to update
    parameters one by one has one program for all.
    """
    kind = type(optimizer)
    if kind not in ELEMENTWISE | ONE_BY_ONE:
        program = _trace(optimizer, slots, state, mode)
        return (Update(program, calls=(tuple(slot.name for slot in slots),)),)
    alike: dict[tuple[Any, ...], list[ParameterSlot]] = {}
    for slot in slots:
        alike.setdefault(_flat_kind(slot, state) if kind in ELEMENTWISE else _shape(slot, state), []).append(slot)
    if kind in ELEMENTWISE:
        return tuple(_flat_update(optimizer, group, state, mode) for group in alike.values())
    return tuple(
        Update(_trace(optimizer, group[:1], state, mode), calls=tuple((slot.name,) for slot in group))
        for group in alike.values()
    )


def _flat_update(optimizer: Optimizer, slots: list[ParameterSlot], state: StateOnMeta, mode: FakeTensorMode) -> Update:
    """The update of parameters that lie behind each other: one parameter stands for them all."""
    flat = nn.Parameter(slots[0].parameter.new_empty(TRACED_ELEMENTS, device="meta"))
    own = {
        name: value.new_empty(TRACED_ELEMENTS) if value.dim() else value for name, value in state[slots[0].name].items()
    }
    slot = ParameterSlot(slots[0].name, flat, slots[0].group)
    program = _trace(optimizer, [slot], {slot.name: own}, mode)
    return Update(program, calls=(tuple(slot.name for slot in slots),), elementwise=True)


def _flat_kind(slot: ParameterSlot, state: StateOnMeta) -> tuple[Any, ...]:
    """What two parameters have in common that an elementwise update takes behind each other."""
    own = [(name, value.dtype, bool(value.dim())) for name, value in sorted(state[slot.name].items())]
    return slot.group, slot.parameter.dtype, *own


def _shape(slot: ParameterSlot, state: StateOnMeta) -> tuple[Any, ...]:
    """What two parameters have in common whose updates are the same program."""
    tensors = [("", slot.parameter), *sorted(state[slot.name].items())]
    return slot.group, *((name, tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in tensors)


def _roles(optimizer: Optimizer, slots: list[ParameterSlot], state: StateOnMeta) -> list[str]:
    return [
        *(f"parameter:{number}" for number in range(len(slots))),
        *(f"gradient:{number}" for number in range(len(slots))),
        *(f"state:{number}/{name}" for number, slot in enumerate(slots) for name in sorted(state[slot.name])),
        *(f"rate:{number}" for number in range(len(optimizer.param_groups))),
    ]


def _trace(optimizer: Optimizer, slots: list[ParameterSlot], state: StateOnMeta, mode: FakeTensorMode) -> Program:
    parameters = [fake_like(mode, slot.parameter) for slot in slots]
    gradients = [fake_like(mode, slot.parameter) for slot in slots]
    names = [sorted(state[slot.name]) for slot in slots]
    fakes = [[fake_like(mode, state[slot.name][name]) for name in own] for slot, own in zip(slots, names, strict=True)]
    roles = _roles(optimizer, slots, state)
    arguments = (parameters, gradients, fakes, learning_rates(optimizer))
    with torch.no_grad():
        return trace(_Update(optimizer, slots, names), arguments, lambda number: roles[number]).program


class _Update(nn.Module):
    """One step of a copy of the optimizer over tensors that are handed in."""

    def __init__(self, optimizer: Optimizer, slots: list[ParameterSlot], state_names: list[list[str]]) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._slots = slots
        self._state_names = state_names

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
