"""The home of an embedded cluster: its paths, its secrets, and the lock that one supervisor holds."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cerebras_contract.cluster import DEFAULT_HOME, HOME_VARIABLE, ClusterHome, Connection, ProcessTable
from cerebras_localcluster.errors import ClusterError

KEY_BYTES = 32


@dataclass(frozen=True)
class LocalHome(ClusterHome):
    """What the cluster keeps in its home, beside what the client reads there."""

    @property
    def database(self) -> Path:
        return self.root / "database.sqlite"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def work(self) -> Path:
        """Run directories."""
        return self.root / "work"

    @property
    def valkey(self) -> Path:
        """Valkey's data."""
        return self.root / "valkey"

    @property
    def valkey_configuration(self) -> Path:
        """Holds Valkey's password; only the owner can read it."""
        return self.root / "valkey.conf"

    @property
    def port(self) -> Path:
        """The port that the API listened on last."""
        return self.root / "port"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"


def local_home(home: Path | None) -> LocalHome:
    """The home as given, else of CEREBRAS_CLOUD_HOME, else ~/.cerebras-cloud."""
    return LocalHome(Path(home or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute())


def prepare(home: LocalHome) -> None:
    """Make the home, for its owner alone, with its folders."""
    try:
        for folder in (home.root, home.logs, home.blobs, home.work, home.valkey):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.root.chmod(0o700)
        # A home inside a project must travel neither in a bundle nor in a commit.
        for ignore_file in (".cerebrasignore", ".gitignore"):
            (home.root / ignore_file).write_text("*\n")
    except OSError as error:
        raise ClusterError(f"cannot use {home.root} as the cluster's home: {error}") from None


def make_api_key(home: LocalHome) -> None:
    """Make the API key, once. For the holder of the lock: two at once would make two."""
    if not home.api_key.exists():
        write_private(home.api_key, secrets.token_urlsafe(KEY_BYTES) + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a file that appears complete, and that only its owner can read from its first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


@contextmanager
def locked(home: LocalHome) -> Iterator[None]:
    """Hold the home's lock; `ClusterError` where another process does. It ends with its holder, however that ends."""
    with home.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"another `cerebras-cloud up` is at work on {home.root}. Wait for it, or choose another --home."
            ) from None
        yield


def read_connection(home: LocalHome) -> Connection | None:
    """Where the API listens; None while the cluster is not up."""
    try:
        return Connection.model_validate_json(home.connection.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def read_processes(home: LocalHome) -> ProcessTable:
    """The processes that were started, in that order; empty where none were."""
    try:
        return ProcessTable.model_validate_json(home.processes.read_bytes())
    except FileNotFoundError:
        return ProcessTable(processes=[])
    except ValidationError:
        raise ClusterError(f"{home.processes} is damaged: end the cluster's processes by hand, remove it.") from None


def forget(home: LocalHome) -> None:
    """Remove what says that a cluster is up."""
    home.connection.unlink(missing_ok=True)
    home.processes.unlink(missing_ok=True)
