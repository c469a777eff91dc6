"""Records how tensors on the meta device are initialised, so that it can be done later, in memory of one's choice.

From the first `with torch.device("meta"):` on, until training is compiled, each operation on such tensors is noted:
inside the block and, as an `_init_weights` may be applied later, after it. Before that block, nothing is different.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import init
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from typing_extensions import override

from cerebras_contract.errors import ReportedError
from cerebras_pytorch.capture.stacks import place_of_frame
from cerebras_pytorch.deferred.replay import no_values, put_at_true_state, value_of
from cerebras_pytorch.deferred.tape import Tape

# These do nothing to a tensor on the meta device, as they look at its values: they are noted as a whole, when they
# ask whether it is one.
LOOKING_INITIALISERS: dict[CodeType, Any] = {
    function.__code__: function
    for function in (init._no_grad_trunc_normal_, init.dirac_, init.orthogonal_, init.sparse_)
}
# These make a tensor of the script's own numbers, which operations do not see. With the place of the numbers.
OF_NUMBERS = {torch.tensor: 0, torch.as_tensor: 0, torch.asarray: 0, torch.Tensor.new_tensor: 1}
INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
_aten = torch.ops.aten
CLONE = _aten.clone.default
ANSWERS = frozenset({_aten._local_scalar_dense.default, _aten.equal.default, _aten.allclose.default})
"""Operations whose result is no tensor: it is of the values."""
COPYING = frozenset({_aten._to_copy.default, _aten.copy_.default})
"""There is nothing to copy from the meta device to another, says PyTorch; what to do instead, it says as well."""
IS_META = torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]
FAKE_MODE = torch._C._TorchDispatchModeKey.FAKE


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what makes or changes tensors on the meta device.

    A number that is asked of one (`.item()`, `if mask.any():`) is computed. Before a script draws on the CPU, the
    generator is put where it would be had everything been drawn there, unless it does not matter (`draws_matter`).
    """

    def __init__(self, tape: Tape, *, draws_matter: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = tape
        self._draws_matter = draws_matter
        self._is_on = self._is_over = False
        self._thread = threading.get_ident()  # a mode is of one

    def begin(self) -> None:
        """Record from here on, unless other modes are there, which would be taken off in the wrong order."""
        is_here = threading.get_ident() == self._thread and _get_current_dispatch_mode() is None
        if is_here and not self._is_on and not self._is_over:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._is_on = True
            torch.Tensor.is_meta = property(self._answer_is_meta)  # type: ignore[assignment]

    def end(self, *, for_good: bool = False) -> None:
        """Record no more, or not until the next block; `for_good` what was recorded is forgotten."""
        if for_good:
            self._is_over = True
            self.tape.calls.clear()
        if self._is_on and _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._is_on = False
            del torch.Tensor.is_meta

    @override
    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(FAKE_MODE) is not None:
            return func(*args, **kwargs)
        if func in ANSWERS and _has_meta_tensor(args):
            return func(*(value_of(self.tape, one) if _has_meta_tensor(one) else one for one in args), **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._draw(func, args, kwargs)
        if func.is_view or not _concerns_meta(args, kwargs):
            return func(*args, **kwargs)
        try:
            results = func(*args, **kwargs)
        except NotImplementedError as error:
            if func in COPYING:
                raise
            raise _not_recorded(func) from error  # else taken by torch's parametrizations for having no inverse
        self._note(func, args, kwargs, results)
        return results

    def _draw(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        generator = kwargs.get("generator") or torch.default_generator
        if _concerns_meta(args, kwargs):
            results = func(*args, **kwargs)
            self._note(func, args, kwargs, results, generator)
            return results
        if self._draws_matter:
            put_at_true_state(self.tape, generator)
        return func(*args, **kwargs)

    def note_numbers(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note a tensor of the script's numbers, as they are now."""
        place = OF_NUMBERS.get(func)
        if self._is_on and place is not None and _has_meta_tensor(result) and not _has_meta_tensor(args[place:]):
            self._note(CLONE, (func(*args, **{**kwargs, "device": "cpu"}),), {}, result)

    def _answer_is_meta(self, tensor: Tensor) -> bool:
        """In place of `Tensor.is_meta`. Where one of torch's initialisers asks, it is noted."""
        answer = _is_meta(tensor.device)
        frame = sys._getframe(1)
        function = LOOKING_INITIALISERS.get(frame.f_code)
        if answer and function is not None:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
            arguments = {name: frame.f_locals[name] for name in names}
            generator = arguments.get("generator")
            # `sparse_` draws from both.
            both = (generator, torch.default_generator) if generator else (torch.default_generator,)
            self._note(function, (), arguments, None, *both)
        return answer

    def _note(self, function: Any, args: Any, kwargs: Any, results: Any, *generators: torch.Generator) -> None:
        self.tape.add(function, args, kwargs, results, generators, place_of_frame(sys._getframe(2)))


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Inside, `with torch.device("meta"):` begins to record."""
    plain = _device.DeviceContext

    class RecordingContext(plain):  # type: ignore[misc,valid-type]
        """What `torch.device(...)` puts around the calls inside it."""

        def __init__(self, device: Any) -> None:  # `with torch.device(...)` makes one, and does not call `__enter__`
            super().__init__(device)
            if _is_meta(device):
                recorder.begin()

        @override
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in INDEXING and _is_meta(self.device):
                args = args[0], self._with_tensors(args[1]), *args[2:]
            result = super().__torch_function__(func, types, args, kwargs)
            if func in OF_NUMBERS:
                recorder.note_numbers(func, args, kwargs or {}, result)
            return result

        def _with_tensors(self, index: Any) -> Any:
            """An index with tensors in the place of lists, which are numbers of the script's, too."""
            if isinstance(index, tuple):
                return tuple(map(self._with_tensors, index))
            return self.__torch_function__(torch.tensor, (), (index,)) if isinstance(index, list) else index

    _device.DeviceContext = RecordingContext  # type: ignore[misc]
    try:
        yield
    finally:
        recorder.end()
        _device.DeviceContext = plain  # type: ignore[misc]


def _not_recorded(func: OpOverload) -> ReportedError:
    return no_values(
        f"{func.overloadpacket.__name__} cannot be called on the meta device, and so not be recorded and done later",
        "Initialise the model in another way, or build it on the CPU.",
        place_of_frame(sys._getframe(1)) or (None, None),
    )


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"


def _concerns_meta(args: Any, kwargs: Any) -> bool:
    """Whether an operation takes or makes a tensor on the meta device."""
    return _has_meta_tensor(args) or (bool(kwargs) and (_is_meta(kwargs.get("device")) or _has_meta_tensor(kwargs)))


def _has_meta_tensor(values: Any) -> bool:
    """Much faster than a walk of pytree: it is asked of each operation of the script's."""
    if isinstance(values, Tensor):
        return bool(IS_META(values))
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return False
    return any(_has_meta_tensor(one) for one in values)
