"""A supervisor over stand-in services: `python stand_in_cluster.py HOME LAYERS`.

LAYERS is a JSON list of layers, each a list of [name, shell script]. A script finds the home in $HOME_FOLDER, and is
healthy when its file NAME.healthy is there. `up` is printed when all are.
"""

import json
import sys
from functools import partial
from pathlib import Path

from cerebras_localcluster.errors import ClusterError
from cerebras_localcluster.home import LocalHome, locked, prepare
from cerebras_localcluster.services import ClusterPlan, Command, Service
from cerebras_localcluster.supervisor import Pace, Supervisor


def problem(home: LocalHome, name: str) -> str | None:
    return None if (home.root / f"{name}.healthy").exists() else "it is not healthy yet"


def plan(home: LocalHome, layers: list[list[list[str]]]) -> ClusterPlan:
    def service(name: str, script: str) -> Service:
        return Service(name, ("sh", "-c", script), {"HOME_FOLDER": str(home.root)}, partial(problem, home, name))

    services = tuple(tuple(service(*words) for words in layer) for layer in layers)
    return ClusterPlan("http://127.0.0.1:1", Command("migrate", ("true",), {}), services)


def main() -> None:
    home = LocalHome(Path(sys.argv[1]))
    prepare(home)
    pace = Pace(healthy_within_seconds=20, stop_grace_seconds=2, look_seconds=0.02, restarts=3)
    try:
        with locked(home):
            Supervisor(home, plan(home, json.loads(sys.argv[2])), pace).run(lambda: print("up", flush=True))
    except ClusterError as error:
        sys.exit(str(error))


main()
