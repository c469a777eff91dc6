"""Power and temperature of a simulated system.

Power is linear in utilization between the two figures of the spec. Temperature follows it as one thermal mass with
one path to the coolant: after a step of power it is 63 % of the way to its new value in `TIME_CONSTANT_SECONDS`.
The two temperatures and the time constant are assumptions, of a water-cooled board of some tens of kilowatts; no
measurement of a real system was at hand.
"""

import math
from dataclasses import dataclass

from cerebras_contract.systems import SystemSpec

COOLANT_CELSIUS = 20.0
FULL_LOAD_CELSIUS = 70.0
TIME_CONSTANT_SECONDS = 45.0


def power_watts(system: SystemSpec, utilization: float) -> float:
    """Watts at a utilization, a fraction of the dense peak."""
    return system.idle_watts + (system.full_load_watts - system.idle_watts) * min(max(utilization, 0.0), 1.0)


def settled_celsius(system: SystemSpec, watts: float) -> float:
    """The temperature that this power leads to in the end."""
    return COOLANT_CELSIUS + (FULL_LOAD_CELSIUS - COOLANT_CELSIUS) * watts / system.full_load_watts


@dataclass
class Thermometer:
    """The temperature of one system, which begins idle and settled."""

    system: SystemSpec

    def __post_init__(self) -> None:
        self.celsius = settled_celsius(self.system, self.system.idle_watts)

    def after(self, seconds: float, watts: float) -> None:
        """Let device seconds pass at this power. Exact, so that many short steps are one long one."""
        target = settled_celsius(self.system, watts)
        self.celsius = target + (self.celsius - target) * math.exp(-seconds / TIME_CONSTANT_SECONDS)
