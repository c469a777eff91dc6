"""`run_summary.json` in a run directory: the attempts at training there, from which step to which, and their ends."""

from enum import StrEnum

from pydantic import Field, PositiveInt

from cerebras_contract.errors import ErrorCode
from cerebras_contract.model import ContractModel

SUMMARY_VERSION = 1


class AttemptEnd(StrEnum):
    """How an attempt ended. STOPPED: by SIGTERM or from the keyboard. KILLED: it never said; the next one writes so."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"


class Attempt(ContractModel):
    """One process that trained. Times are seconds since 1970-01-01 UTC.

    `end_step` is the last step that was trained; of an attempt that runs or was killed, the last one that was noted.
    `ended_at` and `reason` are None while it runs; `error` is there where it failed.
    """

    number: PositiveInt
    start_step: int
    end_step: int
    started_at: float
    ended_at: float | None = None
    reason: AttemptEnd | None = None
    error: ErrorCode | None = None

    def __str__(self) -> str:
        how = f"{self.reason or 'running'}{f' ({self.error})' if self.error else ''}"
        return f"attempt {self.number}: steps {self.start_step} to {self.end_step}, {how}"


class RunSummary(ContractModel):
    """The attempts, the oldest first."""

    schema_version: int = SUMMARY_VERSION
    attempts: list[Attempt] = Field(default_factory=list)
