"""`python -m cerebras_api --host 127.0.0.1 --port N`: the API under uvicorn."""

import argparse
import sys

import uvicorn

from cerebras_api.app import create_app
from cerebras_contract.errors import ReportedError
from cerebras_controlplane.log_setup import set_up_logs
from cerebras_controlplane.settings import read_settings

# Longer than a client's pause between two requests, so that the next one does not meet a closed connection.
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 3


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="cerebras_api", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    set_up_logs()
    try:
        app = create_app(read_settings())
    except ReportedError as error:
        sys.exit(str(error))
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


if __name__ == "__main__":
    main()
