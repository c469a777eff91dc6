"""Size: how many PEs each stage gets, so that the slowest stage is as fast as can be.

Two rates are chosen: the pipeline takes `rate` samples a second, and every stage could do `pace` >= `rate`.
A pace above the rate shortens the time from a sample's forward to its backward, and with it the stash.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.placement.constants import PipelinedConstants
from cerebras_wafer.compiler.placement.stages import Stage, StageGraph

_RATE_STEPS = 24  # halvings of an interval; the rate is then exact to 1e-7
_ROUGH_STEPS = 14  # the same, while paces are compared
_PACE_STEPS = 12  # of a golden section; the pace matters little near its best
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Sizing:
    """PEs of each stage, and samples a second of the whole. `rate` 0.0: not even a still pipeline fits."""

    rate: float
    processing_elements: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.processing_elements)


@dataclass(frozen=True)
class Sizer:
    """Sizes the stages of one graph for one system."""

    graph: StageGraph
    system: SystemSpec
    constants: PipelinedConstants

    @property
    def usable_bytes_per_pe(self) -> float:
        return self.system.sram_bytes_per_pe * self.constants.usable_fraction_of_sram

    def best(self, budget: float, rate_limit: float = math.inf) -> Sizing:
        """The fastest sizing whose PEs are within `budget`; a stage's floor and `rate_limit` cap the rate."""
        clock = self.system.clock_hz
        work = sum(stage.pe_cycles for stage in self._stages)
        fastest = min(clock, budget * clock / work) if work else clock
        least = max(stage.least_cycles for stage in self._stages)
        limit = min([rate_limit, fastest, *([clock / least] if least else [])])
        best = (self._rate(budget, limit, pace=None),) * 2
        if best[0] < limit * (1 - 1e-6):  # memory may bind: look for a faster pace
            best = max(best, self._best_pace(budget, limit, best[0], fastest))
        rate, pace = best
        return Sizing(rate, tuple(map(_whole, self.sizes(rate, pace))))

    def sizes(self, rate: float, pace: float, budget: float = math.inf) -> list[float]:
        """PEs that each stage needs, the last first: its stash depends on how long a sample is under way after it.

        Stops, with what it has, once that is above `budget`.
        """
        clock, usable = self.system.clock_hz, self.usable_bytes_per_pe
        in_flight = self.constants.stash_samples_per_stage * rate
        found = [0.0] * len(self._stages)
        ways = [0.0] * len(self._stages)  # seconds from a stage's begin to the end of the loss
        left = budget
        for number, work, resident, stash, serial, floor, after in self._backwards:
            delay = max([ways[follower] for follower in after], default=0.0)
            paced = work * pace / max(clock - serial * pace, 1e-9 * clock)
            size = max(paced, (resident + stash * (1 + in_flight * delay)) / usable, 1.0)
            found[number] = size
            ways[number] = delay + max(work / size + serial, floor) / clock
            left -= size
            if left < 0:
                break
        return found

    def held_bytes(self, rate: float, areas: Sequence[int]) -> list[float]:
        """Bytes that each stage holds when it has so many PEs."""
        in_flight = self.constants.stash_samples_per_stage * rate
        held, ways = [0.0] * len(areas), [0.0] * len(areas)
        for number in range(len(areas) - 1, -1, -1):
            stage = self._stages[number]
            delay = max([ways[follower] for follower in self._after[number]], default=0.0)
            held[number] = stage.resident_bytes + stage.stash_bytes * (1 + in_flight * delay)
            ways[number] = delay + stage.cycles(areas[number]) / self.system.clock_hz
        return held

    def latency_seconds(self, areas: Sequence[int], *, backward: bool) -> float:
        """Seconds from the first sample's begin to its end: through forward, or to the end of its backward.

        A stage sends on the first rows of a sample before it has the last ones, so the way takes less than the sum
        of the stages' times: the same part of it as in the stash, and the slowest stage's time.
        """
        ways = [0.0] * len(areas)
        slowest = 0.0
        for number in range(len(areas) - 1, -1, -1):
            stage = self._stages[number]
            cycles = stage.cycles(areas[number]) if backward else stage.forward_cycles(areas[number])
            time = cycles / self.system.clock_hz
            slowest = max(slowest, time)
            ways[number] = max([ways[follower] for follower in self._after[number]], default=0.0) + time
        return self.constants.stash_samples_per_stage * max(ways) + slowest

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return self.graph.stages

    @cached_property
    def _after(self) -> list[list[int]]:
        return _followers(self.graph)

    @cached_property
    def _backwards(self) -> list[tuple[int, float, float, float, float, float, list[int]]]:
        """Stages from the last to the first, as plain numbers: sizing reads them some hundred times."""
        found = []
        for number, stage in reversed(list(enumerate(self._stages))):
            memory = stage.resident_bytes, stage.stash_bytes
            found.append(
                (number, stage.pe_cycles, *memory, stage.serial_cycles, stage.floor_cycles, self._after[number])
            )
        return found

    def _fits(self, budget: float, rate: float, pace: float | None) -> bool:
        sizes = self.sizes(rate, rate if pace is None else pace, budget)
        return sum(map(_whole, sizes)) <= budget

    def _rate(self, budget: float, limit: float, pace: float | None, steps: int = _RATE_STEPS) -> float:
        """The highest rate up to `limit` that fits at a pace; without one, at the pace of the rate itself."""
        if self._fits(budget, limit, pace):
            return limit
        low, high = 0.0, limit
        for _ in range(steps):
            middle = (low + high) / 2
            low, high = (middle, high) if self._fits(budget, middle, pace) else (low, middle)
        return low

    def _best_pace(self, budget: float, cap: float, low: float, high: float) -> tuple[float, float]:
        """Golden section over the pace: too slow, the stash grows; too fast, nothing is left for it."""

        def rate_at(pace: float) -> float:
            return self._rate(budget, min(cap, pace), pace, _ROUGH_STEPS)

        first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        rates = {first: rate_at(first), second: rate_at(second)}
        for _ in range(_PACE_STEPS):
            if rates[first] >= rates[second]:
                high, second = second, first
                first = high - _GOLDEN * (high - low)
                rates[first] = rate_at(first)
            else:
                low, first = first, second
                second = low + _GOLDEN * (high - low)
                rates[second] = rate_at(second)
        pace = max(rates, key=lambda tried: rates[tried])
        return self._rate(budget, min(cap, pace), pace), pace


def _whole(size: float) -> int:
    return math.ceil(size - 1e-9)


def _followers(graph: StageGraph) -> list[list[int]]:
    """Stages that each stage sends to; what goes backwards in their order (a module used twice) is left out."""
    found: list[list[int]] = [[] for _ in graph.stages]
    for edge in graph.edges:
        if edge.target > edge.source:
            found[edge.source].append(edge.target)
    return found
