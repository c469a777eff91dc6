"""Finds the operation of a program that fails on the values it is given, by running the program op by op."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from cerebras_wafer.compiler.frontends.places import operation_name
from cerebras_wafer.compiler.frontends.training_step import dtype_name


class ProgramFailed(Exception):
    """An operation of a program refused its values: an index that is out of range, for one.

    `operation`, `module` and `source` (`train.py:17`) are there where they are known; `operands` describes the
    tensors that it was given, whole numbers with their range.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.is_index = isinstance(error, IndexError)
        self.operation: str | None = None
        self.operands = ""
        self.module: str | None = None
        self.source: str | None = None


class _Find(fx.Interpreter):
    """Runs a program and notes the operation at which it ends, on copies of nothing: operations are functional."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.extra_traceback = False
        self.failed: tuple[Node, list[Tensor]] | None = None

    def run_node(self, n: Node) -> Any:
        try:
            return super().run_node(n)
        except Exception:
            values = pytree.tree_leaves(self.fetch_args_kwargs_from_env(n))
            self.failed = n, [value for value in values if isinstance(value, Tensor)]
            raise


def failed_program(program: GraphModule, arguments: Sequence[Tensor], error: Exception) -> ProgramFailed:
    """What failed with `error`; `arguments` are those of the failed run. Draws from the global generator."""
    failure = ProgramFailed(error)
    find = _Find(program)
    try:
        with torch.no_grad():
            find.run(*arguments, enable_io_processing=False)
    except Exception:  # the one that is looked for
        if find.failed is not None:
            node, operands = find.failed
            custom = node.meta.get("custom") or {}
            failure.operation = operation_name(node.target)
            failure.operands = ", ".join(_described(operand) for operand in operands)
            failure.module, failure.source = custom.get("module") or None, custom.get("source")
    return failure


def _described(tensor: Tensor) -> str:
    text = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool or not tensor.numel():
        return text
    return f"{text} with values from {int(tensor.min())} to {int(tensor.max())}"
