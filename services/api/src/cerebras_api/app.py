"""Builds the application."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI

from cerebras_api.context import authorize, open_context
from cerebras_api.errors import handle_errors
from cerebras_api.guard import Guard
from cerebras_api.routes import artifacts, bundles, checkpoints, cluster, files, jobs, stream, telemetry
from cerebras_contract.wire import API_PREFIX, ErrorResponse
from cerebras_controlplane.jobs.reconcile import sweep_until
from cerebras_controlplane.settings import Settings

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The request's fault."},
    "5XX": {"model": ErrorResponse, "description": "The cluster's fault."},
}
SWEEPER_JOIN_SECONDS = 2.0  # it may be waiting for a broker that does not answer


def create_app(settings: Settings) -> FastAPI:
    """The API over the database, blob folder and broker that the settings name."""
    context = open_context(settings)

    @asynccontextmanager
    async def reconciling(_app: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        arguments = (stop, context.sessions, context.celery, settings)
        sweeper = threading.Thread(target=sweep_until, args=arguments, name="reconciler", daemon=True)
        sweeper.start()
        yield
        stop.set()
        sweeper.join(SWEEPER_JOIN_SECONDS)

    app = FastAPI(
        title="Cerebras Cloud emulator",
        version=version("cerebras-emulator-api"),
        lifespan=reconciling,
        separate_input_output_schemas=False,
    )
    app.state.context = context
    app.include_router(cluster.public, prefix=API_PREFIX, responses=ERRORS)
    for room in (cluster, bundles, jobs, telemetry, stream, checkpoints, artifacts, files):
        app.include_router(room.router, prefix=API_PREFIX, dependencies=[Depends(authorize)], responses=ERRORS)
    handle_errors(app)
    app.add_middleware(Guard, allowed_hosts=settings.allowed_hosts)
    return app
