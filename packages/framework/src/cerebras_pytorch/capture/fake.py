"""Fake tensors for a whole capture: one mode, and fake tensors of the CPU in place of a model's `meta` tensors.

A model built under `torch.device("meta")` has shapes but no values. Traced as it is, its programs would hold
operations of the meta device, and attention would fall apart into its parts; so it is traced as if on the CPU.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from cerebras_wafer.errors import CompileError


@contextmanager
def fake_mode() -> Iterator[FakeTensorMode]:
    """The mode in which everything inside is traced, so that one trace can take what another gave.

    The arguments are those that torch.export would choose for a mode of its own. Where the script made another
    device than the CPU the default, factory functions inside still make tensors of the CPU.
    """
    mode = FakeTensorMode(
        shape_env=ShapeEnv(tracked_fakes=[], trace_asserts=True), allow_non_fake_inputs=True, export=True
    )
    default = torch.get_default_device()
    with tracing(TracingContext(mode)), nullcontext() if default.type == "cpu" else torch.device("cpu"):
        yield mode


@contextmanager
def values_on_the_cpu(mode: FakeTensorMode, *modules: nn.Module) -> Iterator[None]:
    """Put fake tensors of the CPU in the place of parameters and buffers on the meta device; put back at the end.

    A tensor under several names stays one tensor. Raises `CompileError` where a tensor without values is neither.
    """
    for module in modules:
        _refuse_hidden_tensors(module)
    fakes: dict[Tensor, Tensor] = {}
    with ExitStack() as put_back:
        for part in (part for module in modules for part in module.modules()):
            for tensors in (part._parameters, part._buffers):
                _replace(mode, tensors, fakes, put_back)
        yield


def _refuse_hidden_tensors(module: nn.Module) -> None:
    """Raise `CompileError` where a tensor without values is no parameter or buffer: it would be a constant."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.is_meta:
                raise CompileError(
                    f"{type(part).__name__} has a tensor without values, {f'{path}.{name}'.lstrip('.')}, which is"
                    " neither a parameter nor a buffer",
                    advice="Make it a buffer, with register_buffer(name, tensor, persistent=False).",
                )


def _replace(mode: FakeTensorMode, tensors: dict[str, Any], fakes: dict[Tensor, Tensor], put_back: ExitStack) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.is_meta:
            put_back.callback(tensors.__setitem__, name, tensor)
            tensors[name] = fakes.setdefault(tensor, _fake_parameter_or_buffer(mode, tensor))


def fake_like(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A tensor of the CPU of the same shape, strides and dtype, without values."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _fake_parameter_or_buffer(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    fake = fake_like(mode, tensor)
    return nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
