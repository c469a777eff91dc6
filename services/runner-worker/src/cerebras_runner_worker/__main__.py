"""`python -m cerebras_runner_worker`: a Celery worker on queue `run`."""

import sys

from cerebras_controlplane.worker.loop import serve
from cerebras_runner_worker.handler import ExecuteHandler

if __name__ == "__main__":
    sys.exit(serve(ExecuteHandler()))
