"""The run directory: the folder in which a stage's user process works, and the seam to the services."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from cerebras_contract.errors import ErrorReport
from cerebras_contract.model import ContractModel
from cerebras_contract.states import StageKind

CHECKPOINT_FOLDER_PREFIX = "step_"
LAUNCH_MODULE = "cerebras_pytorch.launch"


class SandboxKind(StrEnum):
    """How a user's process is kept from the rest of the machine. NONE is chosen by a person, never by us."""

    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run directory. In phase execute `compile/` is read-only."""

    root: Path

    @property
    def code(self) -> Path:
        """The bundle: the working directory of the user's process."""
        return self.root / "code"

    @property
    def config(self) -> Path:
        """The validated run configuration, YAML."""
        return self.root / "config.yaml"

    @property
    def compile(self) -> Path:
        """The artifact."""
        return self.root / "compile"

    @property
    def checkpoints(self) -> Path:
        """One folder a step, each complete or absent."""
        return self.root / "checkpoints"

    @property
    def events(self) -> Path:
        """Append-only, one `RunEvent` a line."""
        return self.root / "events.jsonl"

    @property
    def result(self) -> Path:
        """How the process ended: a `StageResult`. Absent if it was killed."""
        return self.root / "result.json"

    @property
    def summary(self) -> Path:
        """The attempts at training in this directory: a `RunSummary`."""
        return self.root / "run_summary.json"

    @property
    def faults(self) -> Path:
        """Append-only, one `SentFault` a line: faults that are sent to a run while it trains."""
        return self.root / "faults.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log_of(self, stage: StageKind) -> Path:
        """What the process of a stage printed, byte for byte, standard output and error together."""
        return self.logs / f"{stage}.log"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{CHECKPOINT_FOLDER_PREFIX}{step}"


class StageResult(ContractModel):
    """How a user's process ended, as it says itself."""

    status: Literal["succeeded", "failed", "stopped"]
    error: ErrorReport | None = None
    last_step: int = 0
    artifact_key: str | None = None
