"""The loss scale: a number that gradients are multiplied by inside backward, and divided by as they leave it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

GROWTH = 2.0
BACKOFF = 0.5
SMALLEST_SCALE = 2.0**-14
"""Below it a smaller scale helps nothing: gradients are infinite or NaN for another reason."""
LARGEST_SCALE = 2.0**127
"""The largest power of two in float32."""


class LossScaler:
    """The scale of one run, and how many steps were skipped.

    A dynamic scale does as torch.amp.GradScaler: it is doubled after `steps_per_increase` good steps in a row and
    halved after a step whose gradients were not finite. With `steps_per_increase` None the scale is static.
    """

    def __init__(self, scale: float = 1.0, steps_per_increase: int | None = None) -> None:
        self.scale = scale
        self.skipped_steps = 0
        self._good_steps = 0  # since the scale last changed
        self._steps_per_increase = steps_per_increase

    @property
    def is_dynamic(self) -> bool:
        return self._steps_per_increase is not None

    def step_is_over(self, finite: bool) -> None:
        """Count a step that was made or, because its gradients were not `finite`, skipped."""
        self.skipped_steps += not finite
        self._good_steps = self._good_steps + 1 if finite else 0
        if self._steps_per_increase is None:
            return
        if not finite:
            self.scale = max(self.scale * BACKOFF, SMALLEST_SCALE)
        elif self._good_steps == self._steps_per_increase:
            self._good_steps = 0
            self.scale = min(self.scale * GROWTH, LARGEST_SCALE)

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint has to keep."""
        return {"scale": self.scale, "good_steps": self._good_steps, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from `state_dict`. A static scale stays as the script sets it."""
        self.skipped_steps = int(state["skipped_steps"])
        if self.is_dynamic:
            self.scale, self._good_steps = float(state["scale"]), int(state["good_steps"])


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no element is infinite or NaN.

    Read once in all usual cases: an element that is not finite makes its tensor's sum so. A sum that is not finite
    may come from large numbers, so its tensor is then looked at one by one.
    """
    if not tensors:
        return True
    sums = torch.stack([tensor.detach().sum() for tensor in tensors]).isfinite().tolist()
    return all(finite or bool(tensor.isfinite().all()) for finite, tensor in zip(sums, tensors, strict=True))
