"""What a compiled step needs to know of an optimizer: its parameters in order, its state, its constants."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import OptimizerSpec
from cerebras_wafer.errors import CompileError

# How an optimizer is implemented, not what it computes; the learning rate is data of the program.
NOT_CONSTANTS = frozenset({"lr", "foreach", "fused", "capturable", "differentiable"})

COMPILED_OPTIMIZERS = "Use one of torch.optim's that compile: SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, Adafactor."


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
    _refuse_without_state(optimizer)
    _refuse_cycled_momentum(optimizer)
    gradients = [slot.parameter.grad for slot in slots]
    for slot in slots:
        slot.parameter.grad = slot.parameter.new_zeros(()).expand_as(slot.parameter)  # takes no memory
    try:
        for group in optimizer.param_groups:
            collected = len(inspect.signature(optimizer._init_group).parameters) - 1  # type: ignore[attr-defined]
            optimizer._init_group(group, *([] for _ in range(collected)))  # type: ignore[attr-defined]
    except (AttributeError, TypeError) as error:
        raise _not_compiled(optimizer) from error
    finally:
        for slot, gradient in zip(slots, gradients, strict=True):
            slot.parameter.grad = gradient
    if isinstance(optimizer, torch.optim.SGD):
        _start_momentum_at_zero(optimizer, slots)


def _refuse_without_state(optimizer: Optimizer) -> None:
    """Torch's own optimizers make their state in a function of its own; without it nothing is known of the state."""
    if not hasattr(optimizer, "_init_group"):
        raise _not_compiled(optimizer)


def _not_compiled(optimizer: Optimizer) -> CompileError:
    return CompileError(
        f"the optimizer {type(optimizer).__name__} cannot be compiled: its step is not one update from the parameters,"
        " their gradients and a state of fixed shape",
        advice=COMPILED_OPTIMIZERS,
    )


def _refuse_cycled_momentum(optimizer: Optimizer) -> None:
    """OneCycleLR and CyclicLR leave their bounds in the groups where they change the momentum at every step."""
    if any("base_momentum" in group for group in optimizer.param_groups):
        raise CompileError(
            f"a scheduler changes the momentum of {type(optimizer).__name__} at every step, and it is a constant of the"
            " compiled update",
            advice="Only the learning rate may change during training: make the scheduler with cycle_momentum=False.",
        )


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


def state_elements(optimizer: Optimizer, slots: list[ParameterSlot]) -> dict[str, int]:
    """Elements that the optimizer keeps for each parameter, its count of steps aside."""
    return {
        slot.name: sum(value.numel() for value in optimizer.state[slot.parameter].values() if value.dim())
        for slot in slots
    }
