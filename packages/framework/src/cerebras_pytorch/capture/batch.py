"""How a batch is divided: what the model takes, and what the criterion compares its outputs with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cerebras_contract.artifacts import TensorSpec
from cerebras_contract.errors import ErrorCode
from cerebras_wafer.compiler.frontends.training_step import tensor_spec
from cerebras_wafer.errors import CompileError


@dataclass(frozen=True)
class Batch:
    """Arguments of the model, and the target of the criterion."""

    inputs: tuple[Any, ...]
    target: Any

    @property
    def size(self) -> int:
        """Samples: the first dimension of every input."""
        return int(flat_tensors(self.inputs)[0].shape[0])


def divide(batch: Any) -> Batch:
    """Take `(inputs, target)` apart. `inputs` is a tensor, or several in a tuple, list or mapping of tensors."""
    if not isinstance(batch, Sequence) or len(batch) != 2:
        raise _bad_batch(f"a batch must be a pair (inputs, target), not {_describe(batch)}")
    inputs, target = batch
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    for name, part in (("inputs", arguments), ("target", target)):
        leaves = pytree.tree_leaves(part)
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise _bad_batch(f"the {name} of a batch must be tensors, not {_describe(part)}")
    sizes = {int(tensor.shape[0]) if tensor.dim() else 0 for tensor in flat_tensors(arguments)}
    if len(sizes) != 1 or 0 in sizes:
        raise _bad_batch(f"all inputs of a batch must have the same first dimension, not {sorted(sizes)}")
    return Batch(arguments, target)


def flat_tensors(tree: Any) -> list[Tensor]:
    """The tensors of a nested structure, in a fixed order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def specs_of(tree: Any) -> list[TensorSpec]:
    """Shape and dtype of each tensor of a nested structure; they are named by their number."""
    return [tensor_spec(str(number), tensor) for number, tensor in enumerate(flat_tensors(tree))]


def described(specs: Iterable[TensorSpec]) -> str:
    """`float32[64, 1, 28, 28], int64[64]`."""
    return ", ".join(f"{spec.dtype}{spec.shape}" for spec in specs)


def _bad_batch(message: str) -> CompileError:
    return CompileError(
        message,
        code=ErrorCode.COMPILE_BAD_BATCH,
        advice="Let the data loader yield (inputs, target), each a tensor or a tuple of tensors.",
    )


def _describe(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{type(value).__name__} of ({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__
