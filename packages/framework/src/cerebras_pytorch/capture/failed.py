"""What is said of a forward, or a criterion, that fails while it is traced, as it would fail by hand."""

import inspect
import sys
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree

from cerebras_contract.errors import ErrorCode, FaultReport
from cerebras_pytorch.capture.stacks import (
    first_line,
    is_users,
    module_of_frame,
    place_of_frame,
    place_of_function,
    place_of_traceback,
)
from cerebras_wafer.compiler.frontends.training_step import dtype_name
from cerebras_wafer.errors import CompileError

Arguments = tuple[Any, ...]

_SHAPE_WORDS = ("shape", "size", "dimension", "reduction dim", "channels", "must match", "broadcast")
_OWN_CRITERION = (
    "A criterion that needs something else is a module of its own: its forward(output, target) takes what it needs,"
    " reshapes it, and returns the loss."
)
_WITH_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
"""Criteria whose target may be the number of a class."""


def refuse_wrong_call(module: nn.Module, arguments: Arguments, *, is_criterion: bool) -> None:
    """Raise `CompileError` where forward cannot be called with these arguments in order, at the line of its `def`."""
    try:
        inspect.signature(module.forward).bind(*arguments)
    except TypeError as error:
        call = "criterion(output, target)" if is_criterion else f"model({_inputs(arguments)})"
        file, line = place_of_function(module.forward) or (None, None)
        raise CompileError(
            f"{type(module).__name__}.forward{_signature(module)} cannot be called as {call}: {error}",
            file=file,
            line=line,
            advice=f"compile calls {call}, in this order and without names: let forward take them so.",
        ) from None
    except ValueError:  # it has no signature that Python knows
        return


def refuse_labels(criterion: nn.Module, output: Any, target: Any) -> None:
    """Raise `CompileError` where labels cannot be those of classes: of a wrong dtype, or out of range.

    `output` is shaped (batch, classes, ...) or (classes); `target` holds the first batch's labels.
    """
    if not isinstance(criterion, _WITH_CLASSES) or not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return
    name = type(criterion).__name__
    if target.dtype != torch.int64 and target.shape != output.shape:
        raise CompileError(
            f"{name} needs int64 labels, and the loader's target is {_described(target)}",
            code=ErrorCode.COMPILE_BAD_BATCH,
            advice="Make the labels int64 in the dataset, with target.long(); for a regression take nn.MSELoss().",
        )
    if target.dtype != torch.int64 or not output.dim() or isinstance(target, FakeTensor) or target.is_meta:
        return
    classes = int(output.shape[1 if output.dim() > 1 else 0])
    labels = target[target != criterion.ignore_index]
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise CompileError(
            f"the labels of the first batch go from {int(labels.min())} to {int(labels.max())}, and the model's output"
            f" has {classes} classes ({_described(output)}): {name} takes labels from 0 to {classes - 1}",
            code=ErrorCode.COMPILE_BAD_BATCH,
            advice="Number the classes from 0 in the dataset, or let the model's last layer have as many outputs as"
            " there are classes.",
        )


def failure_of(module: nn.Module, arguments: Arguments, error: Exception, *, is_criterion: bool) -> FaultReport:
    """PyTorch's first line, or the user's own exception, with its place and with advice for this kind of failure."""
    trace = error.__traceback__
    file, line = place_of_traceback(trace) or place_of_frame(sys._getframe(1)) or (None, None)
    innermost = _innermost(trace)
    reason = _reason(error)
    if innermost is not None and is_users(innermost.f_code.co_filename):
        said, advice = f"{type(error).__name__}: {reason}", None
        name = module_of_frame(innermost, {part: path for path, part in module.named_modules()})
    elif is_criterion:
        name, (said, advice) = None, _of_criterion(module, arguments, reason)
    else:
        name, said, advice = _of_model(module, arguments, trace, reason)
    return FaultReport(
        code=ErrorCode.COMPILE_UNSUPPORTED, message=said, file=file, line=line, advice=advice, module=name
    )


def _of_criterion(criterion: nn.Module, arguments: Arguments, reason: str) -> tuple[str, str]:
    output, target = arguments
    name = type(criterion).__name__
    if not isinstance(output, Tensor):
        return (
            f"the criterion {name} cannot take what the model returns, {_described(output)}: {reason}",
            f"Return one tensor from the model's forward. {_OWN_CRITERION}",
        )
    said = f"the criterion {name} cannot compare the output {_described(output)} with the target {_described(target)}"
    return f"{said}: {reason}", _OWN_CRITERION


def _of_model(
    model: nn.Module, arguments: Arguments, trace: TracebackType | None, reason: str
) -> tuple[str | None, str, str]:
    """Path of the innermost module, what is said, and the advice."""
    path, frame = _innermost_forward(model, trace)
    part = model.get_submodule(path or "")
    words = repr(part)
    shown = words if "\n" not in words and len(words) <= 90 else type(part).__name__
    given = _given(frame)
    where = f"module {path}, {shown}" if path else f"the model, {type(model).__name__}"
    said = f"{where}{f', given {given},' if given else ''} fails: {reason}"
    by_hand = f"It fails so by hand, too: compile calls model({_inputs(arguments)}) on the loader's first batch."
    if any(word in reason.lower() for word in _SHAPE_WORDS):
        return path, said, f"Make the sizes fit: change the module, or reshape before it. {by_hand}"
    return path, said, by_hand


def _reason(error: Exception) -> str:
    """The first line of a message, in terms of what the user has: there, tensors are no fakes."""
    return first_line(error).replace("FakeTensor", "Tensor")


def _innermost(trace: TracebackType | None) -> FrameType | None:
    """The frame that raised: behind our own mode, which calls of PyTorch come through."""
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames[-1] if frames else None


def _innermost_forward(model: nn.Module, trace: TracebackType | None) -> tuple[str | None, FrameType | None]:
    """Path and frame of the innermost forward of a part of the model that a traceback goes through."""
    paths = {part: path for path, part in model.named_modules()}
    found: tuple[str | None, FrameType | None] = (None, None)
    while trace is not None:
        code, frame = trace.tb_frame.f_code, trace.tb_frame
        own = frame.f_locals.get(code.co_varnames[0]) if code.co_name == "forward" and code.co_argcount else None
        if isinstance(own, nn.Module) and own in paths:
            found = paths[own], frame
        trace = trace.tb_next
    return found


def _given(frame: FrameType | None) -> str:
    """The tensors among a forward's arguments, as they are now."""
    if frame is None:
        return ""
    names = frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
    values = [frame.f_locals.get(name) for name in names]
    return ", ".join(_described(value) for value in values if isinstance(value, Tensor))


def _inputs(arguments: Arguments) -> str:
    return ", ".join(_described(argument) for argument in arguments)


def _signature(module: nn.Module) -> str:
    names = inspect.signature(module.forward)
    return str(names.replace(return_annotation=inspect.Signature.empty))


def _described(value: Any) -> str:
    """`float32[32, 4]` of a tensor, `a tuple of (float32[32, 4], float32[32, 8])` of several."""
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)}{list(value.shape)}"
    parts = [_described(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return f"a {type(value).__name__} of ({', '.join(parts)})"
