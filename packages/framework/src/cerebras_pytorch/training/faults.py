"""Faults that a run is trained against: they change what the simulated system does, or end the run as a lost one."""

import os
import signal
from collections.abc import Callable
from functools import cache

from pydantic import ValidationError

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_contract.faults import FaultPlan, FaultSpec, SentFault
from cerebras_contract.run_directory import StageResult
from cerebras_pytorch.process import Process
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.faults import Conditions, FaultSchedule, FaultyPlans


class Faults:
    """The faults of one run, step by step; each is told when it happens.

    `make_plans` is called once something is wrong. What is sent meanwhile is read from `faults.jsonl`.
    """

    def __init__(
        self,
        process: Process,
        faults: FaultPlan,
        make_plans: Callable[[], FaultyPlans],
        clock: DeviceClock,
        tell: Callable[[str], None],
    ) -> None:
        self._process = process
        self._schedule = FaultSchedule(faults)
        self._plans = cache(make_plans)
        self._clock = clock
        self._tell = tell
        self._now = Conditions()
        self._sent = process.run_directory.faults
        self._read_bytes = 0

    def before(self, step: int) -> None:
        """What is in force during the step that begins."""
        self._take_sent(step)
        conditions = self._schedule.conditions(step)
        for fault in self._schedule.beginning(step):
            if fault.kind != "lose_system":
                self._tell(f"fault at step {step}: {self._described(fault, conditions)}")
        if conditions == self._now:
            return
        before, self._now = self._clock.plan, conditions
        self._clock.use(self._plans().plan_for(conditions))
        if self._clock.plan.step_cycles != before.step_cycles:
            rates = [f"{plan.samples_per_second:,.1f}" for plan in (before, self._clock.plan)]
            self._tell(f"from step {step} on the system trains {rates[1]} samples/s, before {rates[0]} (simulated)")

    def loses_system(self, step: int) -> bool:
        """Whether the system is lost in this step. It happens once: an attempt passes over steps in which one before it
        has lost its system."""
        return self._schedule.loses_system(step) and step not in self._process.lost_in

    def _take_sent(self, step: int) -> None:
        """Read what was sent since the step before."""
        try:
            if self._sent.stat().st_size == self._read_bytes:
                return
            with self._sent.open("rb") as file:
                file.seek(self._read_bytes)
                lines = file.read()
        except FileNotFoundError:
            return
        complete = lines[: lines.rfind(b"\n") + 1]
        self._read_bytes += len(complete)
        for line in complete.splitlines():
            self._take_line(line, step)

    def _take_line(self, line: bytes, step: int) -> None:
        try:
            sent = SentFault.model_validate_json(line)
        except ValidationError as error:
            self._tell(f"a line of {self._sent.name} is no fault and is left out: {error.errors()[0]['msg']}")
            return
        self._schedule.add(FaultSpec(**{**dict(sent), "step": sent.step or step}))

    def lose(self, step: int) -> None:
        """End the process as a lost system does: at once."""
        report = ErrorReport(
            code=ErrorCode.RUN_SYSTEM_LOST,
            message=f"fault at step {step}: the system is lost, and with it what was trained since the last checkpoint",
            advice="A job goes on by itself; by hand run the script again with autoload_last_checkpoint.",
        )
        self._tell(report.message)
        self._process.write_result(StageResult(status="failed", error=report, last_step=self._process.last_step))
        os.kill(os.getpid(), signal.SIGKILL)

    def _described(self, fault: FaultSpec, conditions: Conditions) -> str:
        match fault.kind:
            case "slow_link":
                lasts = f"for {fault.steps} steps" if fault.steps else "from here on"
                return f"the link to the wafer is {fault.factor:,g} times slower {lasts}"
            case "stalled_input":
                return f"the input stalls for {fault.seconds:g} s of device time"
        rows = self._plans().lost_rows(conditions.defects)
        what = f"{rows} rows of the fabric are given up" if rows else "spare ones stand in for them"
        return f"{fault.count:,} processing elements fail: {what}"
