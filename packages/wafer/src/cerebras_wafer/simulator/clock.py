"""Device time: advances by the plan's cycles, never by wall time."""

from dataclasses import dataclass

from cerebras_contract.plans import Plan


@dataclass
class DeviceClock:
    """Simulated cycles since the first step of a run."""

    plan: Plan
    cycles: int = 0

    def advance_step(self) -> None:
        self.cycles += self.plan.step_cycles

    def advance_evaluation(self) -> None:
        self.cycles += self.plan.evaluation_cycles

    @property
    def seconds(self) -> float:
        return self.cycles / self.plan.clock_hz
