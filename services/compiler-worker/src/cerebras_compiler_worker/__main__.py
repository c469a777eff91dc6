"""`python -m cerebras_compiler_worker`: a Celery worker on queue `compile`."""

import sys

from cerebras_compiler_worker.handler import CompileHandler
from cerebras_controlplane.worker.loop import serve

if __name__ == "__main__":
    sys.exit(serve(CompileHandler()))
