"""torch.nn.utils, with a clipping that streams."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.utils import *  # noqa: F403

from cerebras_pytorch.context import memory_of_training


@torch.no_grad()  # type: ignore[no-redef]  # in place of PyTorch's of that name
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale gradients so that the norm of them all is at most `max_norm`; the norm that they had.

    As `torch.nn.utils.clip_grad_norm_`. Where weights stream, one gradient is in memory at a time.
    """
    memory = memory_of_training()
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    norms = []
    for gradient in gradients:
        norms.append(torch.linalg.vector_norm(gradient, norm_type))
        memory.let_go([gradient])
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"the norm of the gradients is {total.item()}, so they cannot be clipped")
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)
        memory.let_go([gradient])
    return total
