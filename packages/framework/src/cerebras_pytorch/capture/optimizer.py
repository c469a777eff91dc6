"""What a compiled step needs to know of an optimizer: its parameters in order, its state, its constants."""

import copy
import inspect
from collections import defaultdict
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

StateOnMeta = dict[str, dict[str, Tensor]]
"""By the parameter's name and the state's: tensors on the meta device."""


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


def initial_state(optimizer: Optimizer, slot: ParameterSlot, parameter: Tensor) -> dict[str, Tensor]:
    """The state that the optimizer has for a parameter, else the state that it would make at its first step.

    It is made for `parameter`, which may stand on the meta device for the slot's: then nothing takes memory. The
    optimizer itself is not changed. Raises `CompileError` where its state cannot be known before it steps.
    """
    _refuse_without_state(optimizer)
    _refuse_cycled_momentum(optimizer)
    state = {name: value for name, value in optimizer.state.get(slot.parameter, {}).items() if value is not None}
    if not state or any(value.is_meta for value in state.values()):
        state = _made_state(optimizer, slot, parameter)
    if isinstance(optimizer, torch.optim.SGD):
        return _momentum_from_zero(optimizer.param_groups[slot.group], state, parameter)
    return state


def _made_state(optimizer: Optimizer, slot: ParameterSlot, parameter: Tensor) -> dict[str, Tensor]:
    """What torch's own function for it makes, for one parameter that has a gradient."""
    like = nn.Parameter(parameter.detach())
    like.grad = like.new_zeros(()).expand_as(like)  # takes no memory
    group = {**optimizer.param_groups[slot.group], "params": [like]}
    maker = copy.copy(optimizer)
    maker.state = defaultdict(dict)
    if type(optimizer) is torch.optim.Adagrad:  # the one that makes its state when it is made
        maker = torch.optim.Adagrad([{**group}], **optimizer.defaults)
    try:
        collected = len(inspect.signature(maker._init_group).parameters) - 1  # type: ignore[attr-defined]
        maker._init_group(group, *([] for _ in range(collected)))  # type: ignore[attr-defined]
    except (AttributeError, TypeError) as error:
        raise _not_compiled(optimizer) from error
    return {name: value for name, value in maker.state[like].items() if value is not None}


def state_on_meta(optimizer: Optimizer, slots: list[ParameterSlot]) -> StateOnMeta:
    """Shape and dtype of every parameter's state."""
    return {
        slot.name: {
            name: torch.empty_like(value, device="meta")
            for name, value in initial_state(optimizer, slot, torch.empty_like(slot.parameter, device="meta")).items()
        }
        for slot in slots
    }


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


def _momentum_from_zero(group: dict[str, Any], state: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    """SGD begins its momentum with the first gradient: the same as from zero, if there is no dampening."""
    if not group["momentum"]:
        return {}
    if group["dampening"]:
        raise CompileError("SGD with dampening cannot be compiled", advice="Set dampening to 0.")
    return {"momentum_buffer": torch.zeros_like(parameter), **state}


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


def optimizer_spec(optimizer: Optimizer, slots: list[ParameterSlot], state: StateOnMeta) -> OptimizerSpec:
    groups = constants_of(optimizer)
    for number, group in enumerate(groups):
        group["parameters"] = [slot.name for slot in slots if slot.group == number]
    names = {slot.name: sorted(state[slot.name]) for slot in slots}
    return OptimizerSpec(name=type(optimizer).__name__, groups=groups, state=names)


def state_elements(state: StateOnMeta) -> dict[str, int]:
    """Elements that the optimizer keeps for each parameter, its count of steps aside."""
    return {name: sum(value.numel() for value in own.values() if value.dim()) for name, own in state.items()}
