"""Mixed precision."""

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch

from cerebras_contract.artifacts import ComputeFormat, PrecisionLevel, PrecisionSpec
from cerebras_wafer.simulator.loss_scale import LossScaler

cbfloat16: Final = ComputeFormat.CBFLOAT16
"""The name of a format that is no dtype of PyTorch: 1 sign, 6 exponent and 9 mantissa bits, twice float16's range."""


@dataclass(frozen=True)
class MixedPrecision:
    """Compute in `param_dtype`; weights, sums and the optimizer's state stay float32.

    `param_dtype` is torch.float16, torch.bfloat16, cbfloat16 or torch.float32, or the name of one. Half precision is
    float32 arithmetic rounded at kernel edges; `precision_opt_level` says at which: 0 (most precise), 1 or 2. What
    `runconfig` says of it wins; where neither does, it is 1.

    `loss_scale` multiplies gradients inside the compiled backward, so that small ones survive half precision: a
    number, or "dynamic", which begins at `init_scale`, doubles after `steps_per_increase` good steps in a row, and
    halves after a step whose gradients are not finite. Such a step is skipped, with a static scale too.
    """

    param_dtype: torch.dtype | str = torch.float16
    loss_scale: float | Literal["dynamic"] = 1.0
    precision_opt_level: PrecisionLevel | None = None
    init_scale: float = 65536.0
    steps_per_increase: int = 2000

    def __post_init__(self) -> None:
        if str(self.param_dtype).removeprefix("torch.") not in list(ComputeFormat):
            known = ", ".join(ComputeFormat)
            raise ValueError(f"param_dtype is one of {known}, not {self.param_dtype}")
        if self.loss_scale != "dynamic" and not _is_scale(self.loss_scale):
            raise ValueError(f'loss_scale is a number above 0, or "dynamic", not {self.loss_scale!r}')
        if self.precision_opt_level not in (None, 0, 1, 2):
            raise ValueError(f"precision_opt_level is 0, 1 or 2, not {self.precision_opt_level!r}")
        if not _is_scale(self.init_scale):
            raise ValueError(f"init_scale is a number above 0, not {self.init_scale!r}")
        if not isinstance(self.steps_per_increase, int) or self.steps_per_increase < 1:
            raise ValueError(f"steps_per_increase is a whole number above 0, not {self.steps_per_increase!r}")

    def spec(self, level: PrecisionLevel | None = None) -> PrecisionSpec:
        """What of this is in the compiled program. `level`, where given, is what `runconfig` says."""
        compute_format = ComputeFormat(str(self.param_dtype).removeprefix("torch."))
        own = 1 if self.precision_opt_level is None else self.precision_opt_level
        return PrecisionSpec(
            compute_dtype=compute_format,
            # In float32 nothing is rounded, so the level is not in the program.
            precision_opt_level=1 if compute_format == ComputeFormat.FLOAT32 else own if level is None else level,
            scales_loss=self.loss_scale != 1,
        )

    def loss_scaler(self) -> LossScaler:
        """The scale at the start of a run."""
        if self.loss_scale == "dynamic":
            return LossScaler(float(self.init_scale), self.steps_per_increase)
        return LossScaler(float(self.loss_scale))


def _is_scale(value: object) -> bool:
    """Whether a value is a number that float32 can hold, above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= torch.finfo(torch.float32).max  # type: ignore[arg-type,operator]
