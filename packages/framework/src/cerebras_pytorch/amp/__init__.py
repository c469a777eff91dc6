"""Mixed precision."""

import math
from dataclasses import dataclass

import torch

from cerebras_contract.artifacts import PrecisionSpec

COMPUTE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class MixedPrecision:
    """Compute in `param_dtype`; weights, sums and the optimizer's state stay float32.

    `loss_scale` multiplies gradients inside the compiled backward, so that small ones survive float16.
    Half precision is float32 arithmetic rounded at kernel edges.
    """

    param_dtype: torch.dtype = torch.float16
    loss_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.param_dtype not in COMPUTE_DTYPES:
            known = ", ".join(str(dtype) for dtype in COMPUTE_DTYPES)
            raise ValueError(f"param_dtype is one of {known}, not {self.param_dtype}")
        number = isinstance(self.loss_scale, (int, float)) and not isinstance(self.loss_scale, bool)
        if not number or not math.isfinite(self.loss_scale) or self.loss_scale <= 0:
            raise ValueError(f"loss_scale is a number above 0, not {self.loss_scale!r}")

    def spec(self) -> PrecisionSpec:
        """The same, as an artifact's manifest says it."""
        dtype = str(self.param_dtype).removeprefix("torch.")
        return PrecisionSpec(compute_dtype=dtype, loss_scale=float(self.loss_scale))
