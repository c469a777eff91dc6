"""What this process is for: a stage of a submitted job, or a script that a person runs by hand."""

import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.run_directory import RunDirectory, StageResult
from cerebras_contract.states import StageKind
from cerebras_pytorch.failures import is_disk_full
from cerebras_pytorch.training.summary import SummaryFile
from cerebras_wafer.compiler.frontends.training_step import CompileOptions, WaferStep

RESERVED_BYTES = 1 << 16


@dataclass(frozen=True)
class Captured:
    """What a script wanted to be compiled, where it is only planned. `seconds` are those of the capture."""

    step: WaferStep
    options: CompileOptions
    max_steps: int | None
    seconds: float


@dataclass
class Process:
    """`stage` is None for a script run by hand, which compiles and executes in one go.

    Where it is for `planning`, the script ends at `compile` with its step `captured`, and there is no artifact.
    """

    run_directory: RunDirectory
    stage: StageKind | None = None
    configuration: RunConfiguration = field(default_factory=RunConfiguration)
    planning: bool = False
    captured: Captured | None = None
    artifact_key: str | None = None
    last_step: int = 0
    stop_requested: bool = False
    checkpoint_requested: bool = False
    training: bool = False
    summary: SummaryFile | None = None

    def log_size_bytes(self) -> int:
        """Bytes that this process has printed so far, flushed to its log."""
        sys.stdout.flush()
        sys.stderr.flush()
        status = os.fstat(sys.__stdout__.fileno()) if sys.__stdout__ else None
        return status.st_size if status and stat.S_ISREG(status.st_mode) else 0

    @property
    def lost_in(self) -> set[int]:
        """The steps in which attempts before this one have lost their system."""
        return self.summary.lost_in if self.summary else set()

    def begin(self) -> None:
        """Forget an earlier run in the same place or process."""
        self.run_directory.result.unlink(missing_ok=True)
        self.summary, self.last_step, self.training = None, 0, False

    def reserve_room(self) -> None:
        """Keep room for the result on a disk that training may fill."""
        self._reserve.write_bytes(bytes(RESERVED_BYTES))

    @property
    def _reserve(self) -> Path:
        return self.run_directory.root / ".result.json.room"

    def write_result(self, result: StageResult) -> None:
        """Leave `result.json`, complete or not at all, and the end of this attempt in `run_summary.json`.

        Where a disk without room refuses it, standard error says so: the error that came first is told, not this one.
        """
        try:
            self._reserve.unlink(missing_ok=True)
            partial = self.run_directory.root / ".result.json.partial"
            partial.write_text(result.model_dump_json(indent=2), encoding="utf-8")
            partial.replace(self.run_directory.result)
            if self.summary is not None:
                self.summary.end(result)
        except OSError as error:
            if not is_disk_full(error):
                raise
            os.write(2, f"how the run ended was not written to {error.filename}: {error.strerror}\n".encode())


_current: Process | None = None


def current_process() -> Process:
    """The process's own description; by hand, the working directory is the run directory."""
    global _current
    if _current is None:
        _current = Process(RunDirectory(Path.cwd()))
    return _current


def set_current_process(process: Process) -> None:
    """Called once by `launch`, before the user's script runs."""
    global _current
    _current = process
