"""Writes `run_summary.json`: the attempts at training in a run directory, each with where it began and how it ended."""

import os
import time
from pathlib import Path

from pydantic import ValidationError

from cerebras_contract.errors import ErrorCode
from cerebras_contract.run_directory import StageResult
from cerebras_contract.summaries import SUMMARY_VERSION, Attempt, AttemptEnd, RunSummary
from cerebras_pytorch.log import logger

ENDS = {"succeeded": AttemptEnd.FINISHED, "stopped": AttemptEnd.STOPPED, "failed": AttemptEnd.FAILED}


class SummaryFile:
    """This attempt, behind those before it. One that never said how it ended was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._earlier = [_ended(attempt) for attempt in _read(path)]
        number = self._earlier[-1].number + 1 if self._earlier else 1
        self._now = Attempt(number=number, start_step=0, end_step=0, started_at=time.time())
        if self._earlier:
            logger.info(f"Attempt {number} in this folder; before it, {self._earlier[-1]}")
        self._write(to_disk=True)

    @property
    def lost_in(self) -> set[int]:
        """The steps in which attempts before this one have lost their system."""
        return {attempt.end_step + 1 for attempt in self._earlier if attempt.error == ErrorCode.RUN_SYSTEM_LOST}

    def starts_from(self, step: int) -> None:
        """This attempt goes on from a checkpoint of that step."""
        self._now = self._now.model_copy(update={"start_step": step, "end_step": step})
        self._write(to_disk=True)

    def reached(self, step: int) -> None:
        """Note a step: what is known of an attempt that is killed."""
        self._now = self._now.model_copy(update={"end_step": step})
        self._write(to_disk=False)

    def end(self, result: StageResult) -> None:
        """Write down how this attempt ended."""
        self._now = self._now.model_copy(
            update={
                "end_step": max(result.last_step, self._now.start_step),
                "ended_at": time.time(),
                "reason": ENDS[result.status],
                "error": result.error.code if result.error else None,
            }
        )
        self._write(to_disk=True)

    def _write(self, *, to_disk: bool) -> None:
        """Complete or not at all."""
        summary = RunSummary(attempts=[*self._earlier, self._now])
        partial = self.path.with_name(f".{self.path.name}.partial")
        with partial.open("w", encoding="utf-8") as file:
            file.write(summary.model_dump_json(indent=2) + "\n")
            if to_disk:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(self.path)


def _read(path: Path) -> list[Attempt]:
    try:
        summary = RunSummary.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValidationError):
        summary = None
    if summary is None or summary.schema_version != SUMMARY_VERSION:
        logger.warning(f"{path.name} is not one that this version wrote; it is begun anew")
        return []
    return summary.attempts


def _ended(attempt: Attempt) -> Attempt:
    return attempt if attempt.reason else attempt.model_copy(update={"reason": AttemptEnd.KILLED})
