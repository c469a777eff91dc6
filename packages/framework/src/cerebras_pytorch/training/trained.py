"""What is trained, moved into the store: the user's parameters and the optimizer's state are views of it."""

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_pytorch.capture.optimizer import initial_state, slots_of, state_on_meta
from cerebras_pytorch.capture.step import parameters_by_name
from cerebras_pytorch.deferred.give import give_state_values, give_values
from cerebras_pytorch.deferred.tape import Tape
from cerebras_wafer.simulator.loss_scale import all_finite
from cerebras_wafer.simulator.store import MappedMemory, Memory, Store


class Trained:
    """The trained parameters of a model by name, with their gradients and their state, in a store.

    A script may put other tensors in their places meanwhile (`parameter.data = ...`, `optimizer.load_state_dict(...)`,
    gradients of autograd): `take_in` copies them.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, manifest: Manifest, memory_of: Callable[[int], Memory], tape: Tape
    ) -> None:
        slots = slots_of(optimizer, parameters_by_name(model, manifest.trained))
        state = state_on_meta(optimizer, slots)
        self.parameters: dict[nn.Parameter, str] = {slot.parameter: slot.name for slot in slots}
        frozen = {name: one for name, one in model.named_parameters() if one not in self.parameters}
        examples = {f"parameter:{slot.name}": slot.parameter.detach() for slot in slots}
        examples |= {f"parameter:{name}": one.detach() for name, one in frozen.items()}
        examples |= {f"state:{slot.name}/{key}": value for slot in slots for key, value in state[slot.name].items()}
        self.store = Store(examples, manifest.updates, memory_of)
        self._optimizer = optimizer
        self._state_names = {slot.name: list(state[slot.name]) for slot in slots}
        names = {**self.parameters, **{one: name for name, one in frozen.items()}}
        give_values(model, tape, lambda tensor: self._place_of(tensor, names), self._let_go)
        for name, one in frozen.items():
            self._take_parameter(one, name)
            self.store.let_go([f"parameter:{name}"])
        for slot in slots:
            give_state_values(optimizer, slot.parameter, tape)
            own = initial_state(optimizer, slot, slot.parameter)
            self._take_parameter(slot.parameter, slot.name)
            for key in self._state_names[slot.name]:
                self._take_state(slot.parameter, slot.name, key, own[key])
            self.store.let_go(self._roles(slot.name))

    def take_in(self) -> None:
        """Copy into the store what a script has put in the place of its tensors."""
        for parameter, name in self.parameters.items():
            self._take_parameter(parameter, name)
            for key in self._state_names[name]:
                self._take_state(parameter, name, key, self._optimizer.state[parameter][key])
        self._take_gradients()

    def with_gradient(self) -> set[str]:
        """Names of the parameters that have a gradient."""
        return {name for parameter, name in self.parameters.items() if parameter.grad is not None}

    def gradients_are_finite(self, names: Collection[str]) -> bool:
        """Whether those of these parameters are: the parameters' own, else those of the store."""
        gradients = {name: parameter.grad for parameter, name in self.parameters.items()}
        places = self.store.tensors
        own = {name: gradients[name] for name in names}
        tensors = [places[f"gradient:{name}"] if one is None else one for name, one in own.items()]
        if not self.is_streamed:
            return all_finite(tensors)
        return all(all_finite([tensor]) and self._let_go([tensor]) for tensor in tensors)

    @property
    def is_streamed(self) -> bool:
        """Whether the store lies in a file."""
        return isinstance(self.store.memory, MappedMemory)

    def hooked(self) -> set[str]:
        """Names of the parameters whose gradients a script has put hooks on: autograd calls them."""
        return {
            name
            for parameter, name in self.parameters.items()
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        }

    def accumulating(self) -> set[str]:
        """Names of the parameters that have a gradient, which is in the store: another is added to it."""
        self._take_gradients()
        return self.with_gradient()

    def show_gradients(self, names: Collection[str]) -> None:
        """Let a script see gradients that lie in the store as those of its parameters."""
        for parameter, name in self.parameters.items():
            if name in names:
                parameter.grad = self.store.tensors[f"gradient:{name}"]

    def take_in_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Copy gradients, by name, into the store, unless they are there."""
        places = self.store.tensors
        others = {n: one for n, one in gradients.items() if one.data_ptr() != places[f"gradient:{n}"].data_ptr()}
        if others:
            torch._foreach_copy_([places[f"gradient:{name}"] for name in others], list(others.values()))

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and optimizer state by role: `parameter:NAME`, `state:NAME/key`."""
        self.take_in()
        return {role: tensor for role, tensor in self.store.tensors.items() if not role.startswith("gradient:")}

    def _place_of(self, tensor: Tensor, names: Mapping[nn.Parameter, str]) -> Tensor:
        """Where the values of a tensor without any belong: a buffer is not in the store."""
        if isinstance(tensor, nn.Parameter):
            return self.store.tensors[f"parameter:{names[tensor]}"]
        return torch.empty_like(tensor, device="cpu")

    def _let_go(self, tensors: Iterable[Tensor]) -> bool:
        self.store.memory.let_go(tensors)
        return True

    def _roles(self, name: str) -> list[str]:
        return [f"parameter:{name}", *(f"state:{name}/{key}" for key in self._state_names[name])]

    def _take_parameter(self, parameter: nn.Parameter, name: str) -> None:
        place = self.store.tensors[f"parameter:{name}"]
        if parameter.data_ptr() != place.data_ptr():
            place.copy_(parameter.detach())
            parameter.data = place

    def _take_state(self, parameter: nn.Parameter, name: str, key: str, value: Tensor) -> None:
        place = self.store.tensors[f"state:{name}/{key}"]
        is_new = value.data_ptr() != place.data_ptr()
        if is_new and (value.count_nonzero() or place.count_nonzero()):  # what was never written takes no room
            place.copy_(value)
        self._optimizer.state[parameter][key] = place

    def _take_gradients(self) -> None:
        """Autograd's gradients are tensors of their own; so are those that a script assigns."""
        pairs = ((name, parameter.grad) for parameter, name in self.parameters.items())
        self.take_in_gradients({name: one.detach() for name, one in pairs if one is not None})
