"""Gives a model that was built on the meta device its values, in memory that is given."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cerebras_contract.errors import ReportedError
from cerebras_pytorch.deferred.needed import needed_for
from cerebras_pytorch.deferred.replay import Replay, is_known, no_values, put_at_true_state, value_of
from cerebras_pytorch.deferred.tape import Part, Tape

Allocate = Callable[[Tensor], Tensor]
"""Memory for a parameter or buffer: a tensor of the CPU of the same shape and dtype."""
Done = Callable[[list[Tensor]], object]
"""Told of pieces of that memory when they have values, and are not needed for a while."""


@dataclass(frozen=True)
class _Wanted:
    """A parameter or buffer without values, and the memory for them."""

    name: str
    tensor: Tensor
    part: Part
    place: Tensor

    @property
    def is_at_home(self) -> bool:
        """Whether the memory can be that of the whole storage."""
        size_bytes = self.tensor.untyped_storage().nbytes()
        return self.part.fills(size_bytes) and self.place.stride() == self.part.strides


def give_values(model: nn.Module, tape: Tape, allocate: Allocate, done: Done) -> None:
    """Give a model's parameters and buffers on the meta device their values; the parameters stay the same objects.

    Bitwise what the CPU would have drawn, and the generators are left where they would be then. Raises `ReportedError`
    where it is not known how one of them was initialised.
    """
    named = dict(_on_meta(model))
    parts = {name: tape.part(tensor) for name, tensor in named.items()}
    _refuse_unknown(tape, parts)
    for name, tensor in named.items():
        _refuse_held(name, tensor)
    wanted = [_Wanted(name, tensor, parts[name], allocate(tensor)) for name, tensor in named.items()]
    homes = {one.part.storage: one for one in reversed(wanted) if one.is_at_home}
    others = [one for one in wanted if homes.get(one.part.storage) is not one]
    standing = [number for generator in tape.generators() if (number := tape.stands_for(generator)) is not None]
    flat = {storage: _bytes_of(one.place) for storage, one in homes.items()}
    replay = Replay(tape, flat, kept={one.part.storage for one in others}, draws=standing)
    replay.run(lambda storages: done([homes[storage].place for storage in storages]))
    with torch.no_grad():
        for one in others:
            one.place.copy_(replay.tensor(one.part))
            done([one.place])
    tape.known_states.update((number, replay.states[number]) for number in standing)
    for generator in tape.generators():
        put_at_true_state(tape, generator)
    for one in wanted:
        _put(model, one.tensor, one.place)


def give_state_values(optimizer: Optimizer, parameter: nn.Parameter, tape: Tape) -> None:
    """Give an optimizer's state of a parameter its values, where it was made, or loaded, while it was on the meta
    device. Where it is not known how, it stays as it is."""
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.is_meta and is_known(tape, value):
            state[name] = value_of(tape, value)


def _on_meta(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers on the meta device, each once."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            yield name, tensor


def _bytes_of(place: Tensor) -> Tensor:
    return place.detach().as_strided((place.numel(),), (1,)).view(torch.uint8)


def _put(model: nn.Module, tensor: Tensor, place: Tensor) -> None:
    """Put real values where `tensor` is: a parameter stays the object that it is, as optimizers hold it."""
    if isinstance(tensor, nn.Parameter):
        real = nn.Parameter(place, tensor.requires_grad)
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if getattr(tensor, hooks):
                setattr(real, hooks, getattr(tensor, hooks))
        # `torch.utils.swap_tensors` would refuse what has weak references (an LSTM has some to its parameters), and
        # take a parameter's class and attributes away; these are as right after as before.
        torch._C._swap_tensor_impl(tensor, real)
        return
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is tensor:
                module._buffers[name] = place


def _refuse_held(name: str, tensor: Tensor) -> None:
    """Of a leaf, autograd may hold its own node; any other holds a tensor that would stay without values."""
    if isinstance(tensor, nn.Parameter) and tensor._use_count() > 2:  # type: ignore[attr-defined]
        raise no_values(
            f"{name} has no values and cannot be given any: a view of it is held, or autograd has used it",
            "Keep no views of parameters on the meta device: make them in forward.",
        )


def _refuse_unknown(tape: Tape, parts: dict[str, Part]) -> None:
    if not needed_for(tape, {part.storage for part in parts.values()}, set()).unknown:
        return
    for name, part in parts.items():
        if unknown := needed_for(tape, {part.storage}, set()).unknown:
            what = name if part.storage in unknown else f"a tensor that {name} is made from"
            raise _unknown(name, what)


def _unknown(name: str, what: str) -> ReportedError:
    return no_values(
        f"the model has no values, and it is not known how {name} is initialised: that is recorded from"
        f' `with torch.device("meta"):` on, and {what} was not made inside of such a block',
        'Build and initialise the model inside `with torch.device("meta"):`, inside of'
        " `with cbt.init_context() as context:`; or build it on the CPU.",
    )
