"""What of a module's forward cannot be captured, all of it at once, each fault with its place and its advice.

An export stops at the first fault. So a module that has one is run again on fake tensors, by two modes that note
each fault and go on with a value that is made up.
"""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction

from cerebras_contract.errors import ErrorCode, FaultReport
from cerebras_pytorch.capture.failed import failure_of
from cerebras_pytorch.capture.stacks import TORCH_FOLDER, is_users, module_of_frame, place_of_frame, place_of_traceback
from cerebras_wafer.compiler.frontends.places import operation_name
from cerebras_wafer.compiler.passes.refuse import (
    CONTROL_FLOW,
    CONTROL_FLOW_REFUSAL,
    CUSTOM_OPERATION,
    VALUE_READ,
    Refusal,
    fault_of,
    refusal_of,
)
from cerebras_wafer.errors import CompileError

MOST_READS = 1000
"""Values made up in one diagnosis: a loop that asks for ever more of them is left."""
MOST_ELEMENTS = 1 << 24
"""An operation whose result depends on the data is tried on ones, where its arguments are no larger than this."""
REENTRANT_FRAMES = 6
"""Frames between a checkpoint's forward and a mode of ours: those of torch.no_grad."""

_BRANCH = Refusal(
    ErrorCode.COMPILE_DATA_DEPENDENT,
    "Python's way through forward depends on the value of a tensor",
    "Compute both sides and choose with torch.where(condition, a, b); give a loop a fixed length; leave checks of"
    " values out of forward.",
)
_ITEM = Refusal(
    ErrorCode.COMPILE_VALUE_READ,
    "it makes a Python number of a tensor inside forward",
    VALUE_READ.advice + " To look at a value, return it as an output of the model.",
)
_PRINT = Refusal(
    ErrorCode.COMPILE_VALUE_READ,
    "it prints a tensor inside forward",
    "Take the print out: a compiled step has no values to print before it has ended. Return the tensor as an output of"
    " the model, or print its shape.",
)
_CAUSAL_MASK = Refusal(
    ErrorCode.COMPILE_DATA_DEPENDENT,
    "PyTorch looks at the values of the mask, whether it is the causal one",
    "Say what the mask is: is_causal=True where it is the causal one, else is_causal=False (tgt_is_causal= for"
    " nn.Transformer and nn.TransformerDecoder).",
)
_REENTRANT = Refusal(
    ErrorCode.COMPILE_UNSUPPORTED,
    "checkpointing of this kind runs forward again inside of backward, and its parameters get no gradient here",
    "Call torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
)
_LEAVES = Refusal(
    ErrorCode.COMPILE_VALUE_READ,
    "it takes the values out of PyTorch inside forward",
    "Write it with PyTorch's operations, or do it in the data loader.",
)

# What asks for the value of a tensor: the function as PyTorch names it, how it is shown, why it is refused.
_READS: dict[str, tuple[str, Refusal]] = {
    "__bool__": ("bool(tensor)", _BRANCH),
    "is_nonzero": ("tensor.is_nonzero()", _BRANCH),
    "equal": ("torch.equal", _BRANCH),
    "allclose": ("torch.allclose", _BRANCH),
    "__contains__": ("`in tensor`", _BRANCH),
    "item": ("tensor.item()", _ITEM),
    "__float__": ("float(tensor)", _ITEM),
    "__int__": ("int(tensor)", _ITEM),
    "__index__": ("a tensor as an index or a length", _ITEM),
    "__complex__": ("complex(tensor)", _ITEM),
    "__repr__": ("print(tensor)", _PRINT),
    "__format__": ("a tensor in a formatted text", _PRINT),
    "tolist": ("tensor.tolist()", _LEAVES),
    "numpy": ("tensor.numpy()", _LEAVES),
    "__array__": ("numpy.asarray(tensor)", _LEAVES),
}
# PyTorch's own frames between an operator of Python and a mode of ours: its modes see the call first.
_WAY_THERE = tuple(
    TORCH_FOLDER + file
    for file in (
        "_tensor.py",
        "overrides.py",
        "utils/_device.py",
        "_export/non_strict_utils.py",
        "fx/experimental/proxy_tensor.py",
    )
)


_LOOKS_AT_MASKS = ("_detect_is_causal_mask", "_canonical_mask")
_REENTRANT_CODE = CheckpointFunction.forward.__code__


class _TooManyReads(Exception):
    """The diagnosis would not come to an end."""


@dataclass
class Notes:
    """Faults of a module, in the order in which they were met."""

    module: nn.Module
    faults: dict[tuple[str | None, str | None, int | None], FaultReport] = field(default_factory=dict)
    _reads: int = 0
    _condition: bool = False

    def __post_init__(self) -> None:
        self._paths = {part: path for path, part in self.module.named_modules()}

    def note(self, operation: str, refusal: Refusal, frame: FrameType | None) -> None:
        """Note a fault at the user's line that led to `frame`, if that is inside of the module's forward."""
        module = module_of_frame(frame, self._paths)
        if module is None:
            return
        self.add([fault_of(operation, refusal, module, place_of_frame(frame))])

    def add(self, faults: Iterable[FaultReport]) -> None:
        """Add faults; the same operation of one line is one fault."""
        for fault in faults:
            self.faults.setdefault((fault.operation, fault.file, fault.line), fault)

    def count_read(self) -> None:
        """Count a value that is made up, and end what asks for too many."""
        self._reads += 1
        if self._reads > MOST_READS:
            raise _TooManyReads

    def next_condition(self) -> bool:
        """True and false in turn, so that loops of either kind end."""
        self._condition = not self._condition
        return self._condition


class _Reads(TorchFunctionMode):
    """Notes where the value of a tensor is asked for; `answer` makes one up."""

    def __init__(self, notes: Notes, answer: Callable[[str, Tensor], Any] | None = None) -> None:
        super().__init__()
        self._notes = notes
        self._answer = answer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if isinstance(func, HigherOrderOperator) and name in CONTROL_FLOW:
            self._notes.note(f"torch.{name}", CONTROL_FLOW_REFUSAL, sys._getframe(1))
        if name == "_set_grad_enabled" and _is_reentrant(sys._getframe(1)):
            self._notes.note("torch.utils.checkpoint with use_reentrant=True", _REENTRANT, sys._getframe(1))
        if name in _READS and args and isinstance(args[0], Tensor):
            caller = _caller(sys._getframe(1))
            if caller is not None and caller.f_code.co_name in _LOOKS_AT_MASKS:
                self._notes.note(_READS[name][0], _CAUSAL_MASK, caller)
            elif caller is not None and (self._answer is not None or is_users(caller.f_code.co_filename)):
                self._notes.note(*_READS[name], caller)
            if self._answer is not None:
                return self._answer(name, args[0])
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that are refused, and makes up the results of those that have none without data."""

    def __init__(self, notes: Notes, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._notes = notes
        self._fake = fake

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refusal = refusal_of(func, args)
        if refusal is None:
            return func(*args, **(kwargs or {}))
        self._notes.note(operation_name(func), refusal, sys._getframe(1))
        with suppress(Exception):
            if refusal.code not in (ErrorCode.COMPILE_DYNAMIC_SHAPE, ErrorCode.COMPILE_VALUE_READ):
                return func(*args, **(kwargs or {}))
        return self._on_ones(func, args, kwargs or {})

    def _on_ones(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        self._notes.count_read()
        with unset_fake_temporarily(), torch.no_grad():
            args, kwargs = pytree.tree_map_only(Tensor, _ones, (args, kwargs))
            result = func(*args, **kwargs)
        return pytree.tree_map_only(Tensor, lambda x: self._fake.from_tensor(x, static_shapes=True), result)


@contextmanager
def watching(module: nn.Module) -> Iterator[Notes]:
    """Note where the module's own code asks for values while it is exported; an export would let some pass."""
    notes = Notes(module)
    with _Reads(notes):
        yield notes


def refuse_torchscript(module: nn.Module) -> None:
    """Raise `CompileError` naming every part of the module that is TorchScript."""
    scripted = [(path, part) for path, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    outermost = [
        (path, part)
        for path, part in scripted
        if not any(path != other and (not other or path.startswith(f"{other}.")) for other, _ in scripted)
    ]
    place = place_of_frame(sys._getframe(1))
    refusal = Refusal(
        ErrorCode.COMPILE_TORCHSCRIPT,
        "TorchScript has been compiled before, and cannot be compiled again",
        "Pass the nn.Module that was given to torch.jit.script or torch.jit.trace; compile does what they did.",
    )
    faults = [fault_of(_script_name(part), refusal, path, place) for path, part in outermost]
    if faults:
        raise CompileError.of_faults(faults, f"{len(faults)} parts of {type(module).__name__} are TorchScript")


def cannot_capture(
    module: nn.Module, arguments: tuple[Any, ...], notes: Notes, met: Sequence[FaultReport]
) -> CompileError:
    """Everything that is refused in `module(*arguments)`: what was noted, what a diagnosis finds, and what was met
    in an export at other places than these."""
    found = Notes(module)
    found.add(notes.faults.values())
    _diagnose(module, arguments, found)
    places = {(fault.file, fault.line) for fault in found.faults.values()}
    found.add(fault for fault in met if (fault.file, fault.line) not in places)
    faults = list(found.faults.values())
    return CompileError.of_faults(faults, f"{type(module).__name__} cannot be compiled: {len(faults)} faults")


def met_in_export(
    module: nn.Module, arguments: tuple[Any, ...], notes: Notes, error: Exception, *, is_criterion: bool
) -> list[FaultReport]:
    """What an export ended with, if it is not a consequence of what was noted."""
    fault = _as_pytorch_says(module, arguments, error, is_criterion=is_criterion)
    return [] if notes.faults and fault.code == ErrorCode.COMPILE_DATA_DEPENDENT else [fault]


def _diagnose(module: nn.Module, arguments: tuple[Any, ...], notes: Notes) -> None:
    """Run forward on fake tensors to its end, or to an error that may be due to what was made up on the way."""
    fake = detect_fake_mode() or FakeTensorMode(allow_non_fake_inputs=True)

    def faked(tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else fake.from_tensor(tensor, static_shapes=True)

    def answer(name: str, tensor: Tensor) -> Any:
        return _made_up(name, tensor, notes)

    arguments = pytree.tree_map_only(Tensor, faked, arguments)
    tensors = {name: faked(x) for name, x in (*module.named_parameters(), *module.named_buffers())}
    with suppress(Exception), redirect_stdout(io.StringIO()), fake, _Operations(notes, fake), _Reads(notes, answer):
        torch.func.functional_call(module, tensors, arguments)


def _made_up(name: str, tensor: Tensor, notes: Notes) -> Any:
    """A value of the type that is asked for: one, or the next of true and false."""
    notes.count_read()
    match name:
        case "__bool__" | "is_nonzero" | "equal" | "allclose" | "__contains__":
            return notes.next_condition()
        case "__repr__" | "__format__":
            return "tensor(...)"
        case "numpy" | "__array__":
            return _ones(tensor).numpy()
        case "tolist":
            return _ones(tensor).tolist()
        case "__float__":
            return 1.0
        case "__complex__":
            return 1j
        case "__int__" | "__index__":
            return 1
    return 1.0 if tensor.is_floating_point() else 1j if tensor.is_complex() else tensor.dtype == torch.bool or 1


def _ones(tensor: Tensor) -> Tensor:
    if tensor.numel() > MOST_ELEMENTS:
        raise _TooManyReads
    with unset_fake_temporarily():
        return torch.ones(tensor.shape, dtype=tensor.dtype)


def _caller(frame: FrameType | None) -> FrameType | None:
    """The frame that asked, behind PyTorch's own way from an operator of Python to here."""
    while frame is not None and frame.f_code.co_filename in _WAY_THERE:
        frame = frame.f_back
    return frame


def _is_reentrant(frame: FrameType | None) -> bool:
    """Whether a reentrant checkpoint turns gradients off: it calls no_grad from its own forward."""
    for _ in range(REENTRANT_FRAMES):
        if frame is None or frame.f_code is _REENTRANT_CODE:
            return frame is not None
        frame = frame.f_back
    return False


def _script_name(part: nn.Module) -> str:
    return f"TorchScript module {getattr(part, 'original_name', type(part).__name__)}"


def _as_pytorch_says(
    module: nn.Module, arguments: tuple[Any, ...], error: Exception, *, is_criterion: bool
) -> FaultReport:
    """The fault that an exception of PyTorch's means, at the user's innermost line that led there."""
    text = str(error)
    if "data-dependent" in text:
        refusal = _BRANCH
    elif "access data pointer" in text or "no fake impl" in text or "Tensor that doesn't have storage" in text:
        refusal = CUSTOM_OPERATION
    else:
        return failure_of(module, arguments, error, is_criterion=is_criterion)
    file, line = place_of_traceback(error.__traceback__) or (None, None)
    message = f"{type(module).__name__} cannot be captured: {refusal.reason}"
    return FaultReport(code=refusal.code, message=message, file=file, line=line, advice=refusal.advice)
