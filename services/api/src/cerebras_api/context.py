"""What every route works with, and who may call it."""

from dataclasses import dataclass
from typing import Annotated

from celery import Celery
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from cerebras_controlplane.auth.bearer import check_key, read_key
from cerebras_controlplane.db import Sessions, open_engine, open_sessions
from cerebras_controlplane.queue.celery_app import make_ringer
from cerebras_controlplane.settings import Settings
from cerebras_controlplane.storage.blobs import BlobStore


@dataclass(frozen=True)
class Context:
    """The open ends of the API process."""

    settings: Settings
    sessions: Sessions
    blobs: BlobStore
    celery: Celery
    api_key: str


def open_context(settings: Settings) -> Context:
    """Open database, blobs and broker, and read the API key."""
    settings.work_folder.mkdir(parents=True, exist_ok=True)
    return Context(
        settings=settings,
        sessions=open_sessions(open_engine(settings.database_url.get_secret_value())),
        blobs=BlobStore(settings.blob_folder),
        celery=make_ringer(settings.broker_url.get_secret_value()),
        api_key=read_key(settings.api_key_file),
    )


def _context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


InContext = Annotated[Context, Depends(_context_of)]

_bearer = HTTPBearer(auto_error=False, description="The cluster's API key.")


def authorize(context: InContext, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> None:
    """Let a request pass if it carries the API key."""
    check_key(given.credentials if given is not None else None, context.api_key)
