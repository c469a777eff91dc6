"""Rates by the two clocks, never mixed."""

import time


class RateMeter:
    """Wall samples a second since the start and since the last look."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._samples = self._last_samples = 0

    def add(self, samples: int) -> None:
        self._samples += samples

    def since_last(self) -> float:
        """Rate since this was last asked."""
        now = time.monotonic()
        rate = (self._samples - self._last_samples) / max(now - self._last, 1e-9)
        self._last, self._last_samples = now, self._samples
        return rate

    def since_start(self) -> float:
        return self._samples / max(time.monotonic() - self._start, 1e-9)
