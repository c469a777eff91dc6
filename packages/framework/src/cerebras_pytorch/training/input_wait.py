"""How long training waits for its input, in wall time. What the device waits for is in the plan."""

import time
from collections.abc import Callable
from types import TracebackType

BOTTLENECK_SHARE = 0.3
"""From here on the log says so: a third of the time could be had."""
FEWEST_STEPS = 10
"""A few steps say little: the first of an epoch waits for worker processes to start."""


class InputWait:
    """Time inside of `with wait:`, against all of the time, since the start and since the last look."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = self._looked_at = now()
        self.seconds = self._waited_before = 0.0
        self._steps_before = self._begun = 0.0
        self.steps = 0

    def __enter__(self) -> None:
        self._begun = self._now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += self._now() - self._begun

    def bottleneck(self) -> str | None:
        """What to say where the input takes a large part of the time since the last look."""
        steps, seconds, waited = self._since()
        if steps < FEWEST_STEPS or waited < BOTTLENECK_SHARE * seconds:
            return None
        waiting, computing = (1000 * part / steps for part in (waited, seconds - waited))
        return (
            f"the input is the bottleneck: the last {steps:.0f} steps waited {waiting:.1f} ms for the loader and"
            f" took {computing:.1f} ms else; give the torch loader num_workers, or set prefetch_batches in run.yaml"
        )

    def look(self) -> float:
        """The share of waiting since this was last asked."""
        _, seconds, waited = self._since()
        self._looked_at, self._waited_before, self._steps_before = self._now(), self.seconds, self.steps
        return waited / max(seconds, 1e-9)

    def _since(self) -> tuple[float, float, float]:
        return self.steps - self._steps_before, self._now() - self._looked_at, self.seconds - self._waited_before

    def __str__(self) -> str:
        seconds = max(self._now() - self._started, 1e-9)
        return f"{self.seconds:.1f} s, {self.seconds / seconds:.0%} of the time"
