"""Device time: advances by the plan's cycles, never by wall time."""

from collections.abc import Mapping
from dataclasses import dataclass

from cerebras_contract.plans import Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.simulator.counters import StepCounters, step_counters
from cerebras_wafer.simulator.thermal import Thermometer, power_watts


@dataclass
class DeviceClock:
    """Simulated cycles since the first step of a run, and what the system's instruments show."""

    plan: Plan
    system: SystemSpec
    half_precision: bool
    cycles: int = 0

    def __post_init__(self) -> None:
        self.counters: StepCounters = step_counters(self.plan, self.system, half_precision=self.half_precision)
        self._thermometer = Thermometer(self.system)

    def advance_step(self) -> None:
        self._advance(self.plan.step_cycles)

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
