"""Faults of a simulated system: which are in force at a step, and the plan that holds then.

A fault never changes the arithmetic. It changes the plan: the artifact's kernel graph is planned once more, for a
system with a slower link or fewer processing elements, in the same mode and with the same micro-batch.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from cerebras_contract.faults import FaultPlan, FaultSpec
from cerebras_contract.plans import Mode, Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.planning import plan_graph


@dataclass(frozen=True)
class Conditions:
    """What is wrong with a system during a step."""

    link_factor: float = 1.0
    defects: int = 0
    stalled_seconds: float = 0.0


class FaultSchedule:
    """Which faults begin at a step, and what is in force during it."""

    def __init__(self, faults: FaultPlan) -> None:
        self._seed = faults.seed
        self._events = list(faults.events)
        self._counted_until = self._defects = 0

    def add(self, fault: FaultSpec) -> None:
        """One more, behind the others, whose draws it leaves as they are."""
        self._events.append(fault)
        self._counted_until = self._defects = 0

    def beginning(self, step: int) -> list[FaultSpec]:
        """The faults that begin at a step. Drawn ones depend on the seed, the step and their place in the list."""
        return [fault for number, fault in enumerate(self._events) if _begins(self._seed, number, fault, step)]

    def conditions(self, step: int) -> Conditions:
        """What is in force during a step: of several slow links the slowest; defects stay and add up."""
        events = enumerate(self._events)
        factors = [fault.factor or 1.0 for number, fault in events if self._lasts(number, fault, step)]
        stalls = [fault.seconds or 0.0 for fault in self.beginning(step) if fault.kind == "stalled_input"]
        return Conditions(max([1.0, *factors]), self._defects_until(step), sum(stalls))

    def loses_system(self, step: int) -> bool:
        """Whether the system is lost in this step."""
        return any(fault.kind == "lose_system" for fault in self.beginning(step))

    def _lasts(self, number: int, fault: FaultSpec, step: int) -> bool:
        """Whether a link is slow during a step since one before it, or since this one."""
        if fault.kind != "slow_link":
            return False
        if fault.steps is None:
            return fault.step is not None and fault.step <= step
        steps = range(max(1, step - fault.steps + 1), step + 1)
        return any(_begins(self._seed, number, fault, one) for one in steps)

    def _defects_until(self, step: int) -> int:
        """Counted on from the step that was last asked for."""
        if step < self._counted_until:
            self._counted_until = self._defects = 0
        for one in range(self._counted_until + 1, step + 1):
            self._defects += sum(fault.count or 0 for fault in self.beginning(one) if fault.kind == "defects")
        self._counted_until = step
        return self._defects


def _begins(seed: int, number: int, fault: FaultSpec, step: int) -> bool:
    if fault.mean_steps is None:
        return fault.step == step
    drawn = hashlib.sha256(f"{seed} {number} {step}".encode()).digest()[:8]
    return int.from_bytes(drawn, "big") * fault.mean_steps < 1 << 64


class FaultyPlans:
    """The plan for each of the conditions that come up, from what is planned where nothing is wrong."""

    def __init__(self, sound: Plan, graph: KernelGraph, options: CompileOptions, system: SystemSpec) -> None:
        self._sound = sound
        self._options = replace(options, execution_mode=sound.mode)
        if sound.mode == Mode.WEIGHT_STREAMING:
            self._options = replace(self._options, micro_batch=sound.micro_batch)
        self._graph, self._system = graph, system
        self._planned: Callable[[float, int], Plan] = cache(self._plan)

    def plan_for(self, conditions: Conditions) -> Plan:
        """The plan of a step under these conditions. Raises `CompileError` where it does not fit any more."""
        lost_rows = self.lost_rows(conditions.defects)
        is_sound = conditions.link_factor == 1.0 and not lost_rows
        plan = self._sound if is_sound else self._planned(conditions.link_factor, lost_rows)
        return _stalled(plan, conditions.stalled_seconds)

    def lost_rows(self, defects: int) -> int:
        """Rows of the fabric that are given up: those with a defect that no spare element stands in for."""
        beyond = max(0, defects - self._system.spare_processing_elements)
        return math.ceil(beyond / self._system.fabric_columns)

    def _plan(self, link_factor: float, lost_rows: int) -> Plan:
        spec = self._system.model_copy(
            update={
                "off_wafer_bytes_per_second": self._system.off_wafer_bytes_per_second / link_factor,
                "fabric_rows": max(1, self._system.fabric_rows - lost_rows),
            }
        )
        return plan_graph(self._graph, self._options, spec, lambda _: None)


def _stalled(plan: Plan, seconds: float) -> Plan:
    """A step that waits so long for its input, beside what it waits anyway."""
    cycles = round(seconds * plan.clock_hz)
    waiting = {"step_cycles": plan.step_cycles + cycles, "input_wait_cycles": plan.input_wait_cycles + cycles}
    return plan.model_copy(update=waiting) if cycles else plan
