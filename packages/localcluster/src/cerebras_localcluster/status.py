"""How a cluster is, seen from outside."""

from cerebras_contract.cluster import ClusterStatus, ProcessHealth, ProcessRecord, ProcessStatus
from cerebras_localcluster import processes
from cerebras_localcluster.health import Addresses, HealthCheck, health_checks
from cerebras_localcluster.home import LocalHome, read_connection, read_processes
from cerebras_localcluster.services import valkey_address


def cluster_status(home: LocalHome) -> ClusterStatus:
    """Look at every process of the home. `running` means: the cluster is up, though perhaps not well."""
    connection = read_connection(home)
    url = None if connection is None else connection.url
    checks = {} if url is None else _checks(home, url)
    statuses = [_status(known, checks, is_up=url is not None) for known in read_processes(home).processes]
    is_alive = any(status.health is not ProcessHealth.DEAD for status in statuses)
    return ClusterStatus(running=url is not None and is_alive, home=str(home.root), url=url, processes=statuses)


def is_healthy(status: ClusterStatus) -> bool:
    """Whether the cluster is up and every process of it is well."""
    return status.running and all(process.health is ProcessHealth.HEALTHY for process in status.processes)


def is_starting(status: ClusterStatus) -> bool:
    """Whether the cluster is on its way up."""
    return any(process.health is ProcessHealth.STARTING for process in status.processes)


def _checks(home: LocalHome, url: str) -> dict[str, HealthCheck]:
    port, password = valkey_address(home)
    key = home.api_key.read_text().strip()
    return health_checks(Addresses(url, key, port, password))


def _status(known: ProcessRecord, checks: dict[str, HealthCheck], *, is_up: bool) -> ProcessStatus:
    if processes.find(known) is None:
        return ProcessStatus(name=known.name, pid=known.pid, health=ProcessHealth.DEAD)
    if not is_up:
        return ProcessStatus(name=known.name, pid=known.pid, health=ProcessHealth.STARTING)
    problem = checks[known.name]() if known.name in checks else None
    health = ProcessHealth.HEALTHY if problem is None else ProcessHealth.UNHEALTHY
    return ProcessStatus(name=known.name, pid=known.pid, health=health, detail=problem)
