"""The supervisor: starts a cluster's processes, restarts what dies, and stops everything at its own end."""

import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import psutil

from cerebras_contract.cluster import Connection, ProcessTable
from cerebras_localcluster import processes
from cerebras_localcluster.errors import ClusterError
from cerebras_localcluster.home import LocalHome, forget, write_private
from cerebras_localcluster.services import ClusterPlan, Command, Service

SUPERVISOR = "supervisor"
LOG_TAIL_LINES = 20


@dataclass(frozen=True)
class Pace:
    """How long things may take, in seconds, and how many restarts are one too many."""

    healthy_within_seconds: float = 60
    stop_grace_seconds: float = 20
    look_seconds: float = 0.2
    restarts: int = 5
    restarts_within_seconds: float = 60


class Supervisor:
    """Keeps the services of one home running. The home is locked and clean when it begins."""

    def __init__(self, home: LocalHome, plan: ClusterPlan, pace: Pace) -> None:
        self._home = home
        self._plan = plan
        self._pace = pace
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: deque[float] = deque()
        self._is_stopping = False

    def run(self, announce: Callable[[], None]) -> None:
        """Start everything, call `announce` when all is healthy, watch until a signal asks to stop.

        `ClusterError` for a service that does not become healthy or dies too often; all others are stopped then.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop_soon)
        processes.adopt_orphans()
        try:
            self._write_table()
            self._prepare(self._plan.preparation)
            deadline = time.monotonic() + self._pace.healthy_within_seconds
            for layer in self._plan.layers:
                for service in layer:
                    self._start(service)
                self._wait_until_healthy(layer, deadline)
            if not self._is_stopping:
                write_private(self._home.connection, Connection(url=self._plan.url).model_dump_json())
                announce()
            self._watch()
        finally:
            self._stop_all()
            forget(self._home)

    def _stop_soon(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_stopping = True

    def _prepare(self, command: Command) -> None:
        process = processes.start(command.command, command.environment, self._home.log_of(command.name))
        status = process.wait()
        if status != 0:
            raise ClusterError(self._with_log(command.name, f"ended with status {status}"))

    def _start(self, service: Service) -> None:
        if not self._is_stopping:
            log = self._home.log_of(service.name)
            self._running[service.name] = processes.start(service.command, service.environment, log)
            self._write_table()

    def _wait_until_healthy(self, layer: tuple[Service, ...], deadline: float) -> None:
        for service in layer:
            while not self._is_stopping and (problem := service.problem()) is not None:
                self._check_started()
                if time.monotonic() > deadline:
                    raise ClusterError(self._with_log(service.name, f"did not become healthy ({problem})"))
                time.sleep(self._pace.look_seconds)

    def _check_started(self) -> None:
        """`ClusterError` where a service ended while the cluster starts: an earlier one may be why a later waits."""
        for name, process in self._running.items():
            status = process.poll()
            if status is not None:
                raise ClusterError(self._with_log(name, f"ended with status {status} while starting"))

    def _watch(self) -> None:
        services = [service for layer in self._plan.layers for service in layer]
        while not self._is_stopping:
            for service in services:
                status = self._running[service.name].poll()
                if status is not None:
                    self._count_restart(service, status)
                    self._end_orphans()
                    self._start(service)
            processes.reap_adopted(self._pids())
            time.sleep(self._pace.look_seconds)

    def _pids(self) -> set[int]:
        """The services that have not been seen to end."""
        return {process.pid for process in self._running.values() if process.returncode is None}

    def _count_restart(self, service: Service, status: int) -> None:
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > self._pace.restarts_within_seconds:
            self._restarts.popleft()
        if len(self._restarts) >= self._pace.restarts:
            raise ClusterError(self._with_log(service.name, f"ended with status {status}, too often to go on"))
        self._restarts.append(now)

    def _end_orphans(self) -> None:
        """End what a service that died had started: it is our child now."""
        ours = self._pids()
        orphans = [child for child in psutil.Process().children() if child.pid not in ours]
        processes.end(orphans, self._pace.stop_grace_seconds)

    def _stop_all(self) -> None:
        for layer in reversed(self._plan.layers):
            started = [self._running[service.name] for service in layer if service.name in self._running]
            alive = [psutil.Process(process.pid) for process in started if process.poll() is None]
            processes.end(alive, self._pace.stop_grace_seconds)
        self._end_orphans()

    def _write_table(self) -> None:
        """Record every living process, this one first, so that `down` finds them also after our own death."""
        pids = {SUPERVISOR: psutil.Process().pid}
        pids |= {name: process.pid for name, process in self._running.items() if process.poll() is None}
        table = ProcessTable(processes=[processes.record(name, pid) for name, pid in pids.items()])
        write_private(self._home.processes, table.model_dump_json())

    def _with_log(self, name: str, what: str) -> str:
        log = self._home.log_of(name)
        lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"{name} {what}. The end of its log ({log}):", *(f"  {line}" for line in lines)])
