"""Ending a cluster from outside, whatever state it is in."""

from cerebras_contract.cluster import ProcessRecord
from cerebras_localcluster import processes
from cerebras_localcluster.home import LocalHome, forget, read_processes
from cerebras_localcluster.supervisor import SUPERVISOR

SUPERVISOR_GRACE_SECONDS = 75
"""Three layers to stop, 20 s each at most."""
GRACE_SECONDS = 20


def living(home: LocalHome) -> list[ProcessRecord]:
    """The recorded processes of the home that still run."""
    return [known for known in read_processes(home).processes if processes.find(known) is not None]


def end_cluster(home: LocalHome) -> list[ProcessRecord]:
    """End every process of the home, and return the records of those that ran.

    The supervisor is asked first, and ends the others in order. What it leaves, or what is left where it has
    crashed, is ended here, the last started first: workers, API, Valkey.
    """
    found = living(home)
    supervisor = [process for known in found if known.name == SUPERVISOR and (process := processes.find(known))]
    processes.end(supervisor, SUPERVISOR_GRACE_SECONDS)
    for known in reversed([*found, *living(home)]):
        process = processes.find(known)
        if process is not None:
            processes.end([process], GRACE_SECONDS)
    forget(home)
    return found
