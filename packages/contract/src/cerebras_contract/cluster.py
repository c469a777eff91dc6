"""Files of an embedded cluster's home that the client reads, and what `status` answers."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cerebras_contract.model import ContractModel

HOME_VARIABLE = "CEREBRAS_CLOUD_HOME"
URL_VARIABLE = "CEREBRAS_CLOUD_URL"
API_KEY_VARIABLE = "CEREBRAS_CLOUD_API_KEY"
DEFAULT_HOME = "~/.cerebras-cloud"


@dataclass(frozen=True)
class ClusterHome:
    """Paths in an embedded cluster's home."""

    root: Path

    @property
    def connection(self) -> Path:
        """A `Connection`, present while the cluster is up."""
        return self.root / "connection.json"

    @property
    def api_key(self) -> Path:
        """The API key; only the owner can read it."""
        return self.root / "api_key"

    @property
    def processes(self) -> Path:
        """A `ProcessTable`: what `down` has to end, also after a crash."""
        return self.root / "processes.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


class Connection(ContractModel):
    """Where the API listens."""

    url: str


class ProcessRecord(ContractModel):
    """A process we started. `started_at` (seconds since the epoch) tells it from a later one with its pid."""

    name: str
    pid: int
    started_at: float


class ProcessTable(ContractModel):
    processes: list[ProcessRecord]


class ProcessHealth(StrEnum):
    HEALTHY = "healthy"
    STARTING = "starting"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"


class ProcessStatus(ContractModel):
    name: str
    pid: int
    health: ProcessHealth
    detail: str | None = None


class ClusterStatus(ContractModel):
    """What `cerebras-cloud status --json` prints."""

    running: bool
    home: str
    url: str | None
    processes: list[ProcessStatus]
