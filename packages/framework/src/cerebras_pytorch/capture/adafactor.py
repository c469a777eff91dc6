"""One step of torch.optim.Adafactor in operations on tensors.

torch's own step reads the step count and two norms as Python numbers and branches on them, which no trace can
follow. Here they stay tensors of one element, in float64 as Python's numbers are; the results agree to rounding.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def step(optimizer: Optimizer) -> None:
    """Update the parameters and the state of an `Adafactor` whose rates are tensors, in place."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _update(parameter, optimizer.state[parameter], group)


def _update(parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    gradient = -parameter.grad if group["maximize"] else parameter.grad  # type: ignore[operator]
    assert gradient is not None
    smallest, smallest_scale = group["eps"]
    smallest = torch.finfo(parameter.dtype).eps if smallest is None else smallest
    state["step"] += 1
    steps = state["step"].double()
    weight = (steps ** group["beta2_decay"]).to(parameter.dtype)
    relative_rate = torch.minimum(group["lr"], steps**-0.5)
    rate = _root_mean_square(parameter).clamp(min=smallest_scale) * relative_rate
    if group["weight_decay"]:
        parameter.mul_((1 - group["lr"] * group["weight_decay"]).to(parameter.dtype))
    variance = _variance(gradient, state, weight, smallest)
    update = variance.clamp(min=smallest * smallest).rsqrt() * gradient
    clipping = (_root_mean_square(update) / group["d"]).clamp(min=1.0)
    parameter.add_(update * (-rate / clipping).to(parameter.dtype))


def _variance(gradient: Tensor, state: dict[str, Tensor], weight: Tensor, smallest: float) -> Tensor:
    """The estimate of the squared gradient: factored into rows and columns where there are two dimensions."""
    if gradient.dim() < 2:
        state["variance"].lerp_(gradient * gradient, weight)
        return state["variance"].clone()
    rows, columns = state["row_var"], state["col_var"]
    rows.lerp_(gradient.square().mean(dim=-1, keepdim=True), weight)
    columns.lerp_(gradient.square().mean(dim=-2, keepdim=True), weight)
    return rows @ columns / rows.mean(dim=-2, keepdim=True).clamp(min=smallest)


def _root_mean_square(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm.double() / math.sqrt(tensor.numel())
