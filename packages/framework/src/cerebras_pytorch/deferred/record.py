"""Records how tensors on the meta device are initialised, so that it can be done later, in memory of one's choice.

While recording is on, `torch.device("meta")` makes a device context of ours: what is called inside it is noted,
operation by operation. Tensors are noted by their storage, so that a view, `weight.data[0]`, is part of what it views.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import init
from torch.utils import _device
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# These do nothing to a tensor on the meta device, as they look at its values: they are noted as a whole, when they
# ask whether it is one.
LOOKING_INITIALISERS: dict[CodeType, Any] = {
    function.__code__: function
    for function in (init._no_grad_trunc_normal_, init.dirac_, init.orthogonal_, init.sparse_)
}
OF_VALUES = (torch.tensor, torch.as_tensor)
"""Makes a tensor of the script's numbers, which operations do not see."""
IS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Part:
    """A tensor as a part of a storage."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Draw:
    """From which generator an operation draws (0: the global one), and the state that it was put in before; None where
    it goes on from the draw before."""

    generator: int
    state: Tensor | None


@dataclass(frozen=True)
class Call:
    """An operation; tensors on the meta device among `args`, `kwargs` and `results` are `Part`s."""

    function: Any
    args: Any
    kwargs: Any
    results: Any
    draw: Draw | None

    @property
    def storages(self) -> set[int]:
        leaves = pytree.tree_leaves((self.args, self.kwargs, self.results))
        return {leaf.storage for leaf in leaves if isinstance(leaf, Part)}


@dataclass
class Tape:
    """What was called, in order. Storages are kept, so that none takes another's place."""

    calls: list[Call] = field(default_factory=list)
    _numbers: dict[int, tuple[int, torch.UntypedStorage]] = field(default_factory=dict)
    _next: Iterator[int] = field(default_factory=count)
    _states: dict[int, Tensor] = field(default_factory=dict)
    _seen: dict[int, dict[int, tuple[Tensor, int]]] = field(default_factory=lambda: defaultdict(dict))
    """By storage and tensor: how often it was changed in place, when it was last seen."""

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of a tensor's storage; None where nothing was recorded of it."""
        found = self._numbers.get(tensor.untyped_storage()._cdata)
        return found[0] if found else None

    def is_changed(self, tensor: Tensor) -> bool:
        """Whether a tensor was changed in place outside of what is recorded."""
        seen = self._seen[tensor.untyped_storage()._cdata]
        return tensor._version != seen.get(id(tensor), (tensor, 0))[1]

    def add(self, function: Any, args: Any, kwargs: Any, results: Any, *, draws: bool) -> None:
        args_, kwargs_, results_ = pytree.tree_map_only(Tensor, self.part, (args, kwargs, results))
        draw = self._draw(kwargs.get("generator")) if draws else None
        self.calls.append(Call(function, args_, kwargs_, results_, draw))

    def see(self, arguments: Any) -> None:
        """Note how often these tensors, and those that they are views of, were changed in place by now."""
        for tensor in pytree.tree_leaves(arguments):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                seen = self._seen[tensor.untyped_storage()._cdata]
                if not tensor._is_view():  # a view would hold on to what it is a view of
                    seen[id(tensor)] = tensor, 0
                seen.update({key: (one, one._version) for key, (one, _) in seen.items()})

    def part(self, tensor: Tensor) -> Any:
        """A tensor on the meta device as a part of its storage; of another one a copy."""
        if not tensor.is_meta:
            return tensor.detach().clone()  # as it is now
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = next(self._next), storage
        number = self._numbers[storage._cdata][0]
        return Part(number, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _draw(self, generator: torch.Generator | None) -> Draw:
        """On the meta device nothing is drawn: where a state is another than before, the script has changed it."""
        key: int = generator._cdata if generator else 0  # type: ignore[attr-defined]
        state = (generator or torch.default_generator).get_state()
        before = self._states.get(key)
        self._states[key] = state
        return Draw(key, None if before is not None and torch.equal(before, state) else state)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that make or change tensors on the meta device."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        if any(isinstance(one, Tensor) and one.is_meta for one in pytree.tree_leaves((args, kwargs, results))):
            assert isinstance(func, OpOverload)
            if not func.is_view:
                draws = torch.Tag.nondeterministic_seeded in func.tags
                self._tape.add(func, args, kwargs, results, draws=draws)
        return results


@contextmanager
def recording(tape: Tape) -> Iterator[None]:
    """Record on `tape` what is called inside `with torch.device("meta"):`."""
    recorder = _Recorder(tape)
    plain = _device.DeviceContext

    class RecordingContext(plain):  # type: ignore[misc,valid-type]
        """What `torch.device(...)` puts around the calls inside it; of other devices than meta nothing is noted."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self.device.type != "meta":
                return super().__torch_function__(func, types, args, kwargs)
            if func == IS_META and _note_initialiser(tape, args[0]):
                return True
            with recorder:
                result = super().__torch_function__(func, types, args, kwargs)
            if func in OF_VALUES and result.is_meta:
                tape.add(func, args, {**(kwargs or {}), "device": self.device}, result, draws=False)
            tape.see((args, kwargs))
            return result

    _device.DeviceContext = RecordingContext  # type: ignore[misc]
    try:
        yield
    finally:
        _device.DeviceContext = plain  # type: ignore[misc]


def _note_initialiser(tape: Tape, tensor: Tensor) -> bool:
    """Whether one of torch's initialisers asks: then it is noted, with the arguments that it was called with."""
    frame = sys._getframe(2)
    function = LOOKING_INITIALISERS.get(frame.f_code)
    if function is None or not tensor.is_meta:
        return False
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
    tape.add(function, (), {name: frame.f_locals[name] for name in names}, None, draws=True)
    return True
