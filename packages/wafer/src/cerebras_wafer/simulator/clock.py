"""Device time: advances by the plan's cycles, never by wall time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cerebras_contract.plans import Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.simulator.counters import StepCounters, step_counters
from cerebras_wafer.simulator.thermal import Thermometer, power_watts


class RunStep(NamedTuple):
    """A batch that was trained on. `start_cycles` are the clock's."""

    start_cycles: int
    plan: Plan


@dataclass
class DeviceClock:
    """Simulated cycles since the first step of a run, and what the system's instruments show."""

    plan: Plan
    system: SystemSpec
    half_precision: bool
    cycles: int = 0

    def __post_init__(self) -> None:
        self._steps: list[RunStep] = []
        self.use(self.plan)
        self._thermometer = Thermometer(self.system)

    def use(self, plan: Plan) -> None:
        """From here on steps are as this plan says."""
        self.plan = plan
        self.counters: StepCounters = step_counters(plan, self.system, half_precision=self.half_precision)

    def advance_step(self) -> None:
        self._steps.append(RunStep(self.cycles, self.plan))
        self._advance(self.plan.step_cycles)

    def take_steps(self) -> list[RunStep]:
        """The batches trained on since this was last asked: when each began, and the plan that it went by."""
        steps, self._steps = self._steps, []
        return steps

    def advance_evaluation(self) -> None:
        self._advance(self.plan.evaluation_cycles)

    @property
    def seconds(self) -> float:
        return self.cycles / self.plan.clock_hz

    @property
    def watts(self) -> float:
        """Power of one system while it trains."""
        return power_watts(self.system, self.counters.utilization)

    def readings(self) -> dict[str, float]:
        """What the instruments show now, by name: of one step on one system, and its temperature."""
        counters = self.counters
        stalled = {
            f"device/stalled_on_{bound.replace(' ', '_').replace('/', '')}".lower(): cycles / counters.cycles
            for bound, cycles in counters.stalled_cycles.items()
        }
        return {
            "device/step_cycles": counters.cycles,
            "device/utilization": counters.utilization,
            "device/peak_sram_bytes_per_pe": counters.peak_sram_bytes_per_pe,
            "device/fabric_bytes": counters.fabric_bytes,
            "device/off_wafer_bytes": counters.off_wafer_bytes,
            "device/power_watts": self.watts,
            "device/temperature_celsius": self._thermometer.celsius,
            **stalled,
        }

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint has to keep."""
        return {"cycles": self.cycles, "celsius": self._thermometer.celsius}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from `state_dict`."""
        self.cycles, self._thermometer.celsius = int(state["cycles"]), float(state["celsius"])

    def _advance(self, cycles: int) -> None:
        self.cycles += cycles
        self._thermometer.after(cycles / self.plan.clock_hz, self.watts)
