"""Is it up, and who is there."""

from importlib.metadata import version

import redis
from fastapi import APIRouter
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from cerebras_api.context import Context, InContext
from cerebras_contract.wire import ClusterView, Health
from cerebras_controlplane.db import reading
from cerebras_controlplane.jobs.workers import view_cluster

PING_SECONDS = 2.0

public = APIRouter(tags=["cluster"])
router = APIRouter(tags=["cluster"])


@public.get("/health")
def health(context: InContext) -> Health:
    """Whether database and queue answer; needs no key."""
    database, queue = _database_health(context), _queue_health(context)
    return Health(
        status="ok" if database == queue == "ok" else "degraded",
        database=database,
        queue=queue,
        version=version("cerebras-emulator-api"),
    )


@router.get("/cluster")
def show_cluster(context: InContext) -> ClusterView:
    """Workers, systems, and how much there is to do."""
    with reading(context.sessions) as session:
        return view_cluster(session)


def _database_health(context: Context) -> str:
    try:
        with reading(context.sessions) as session:
            session.execute(text("SELECT 1 FROM jobs LIMIT 1"))
    except SQLAlchemyError as error:
        return f"down: {type(error).__name__}"
    return "ok"


def _queue_health(context: Context) -> str:
    url = context.settings.broker_url.get_secret_value()
    try:
        with redis.Redis.from_url(url, socket_timeout=PING_SECONDS, socket_connect_timeout=PING_SECONDS) as queue:
            queue.ping()
    except redis.RedisError as error:
        return f"down: {type(error).__name__}"
    return "ok"
