"""What a worker works with, and what its service adds for its own kind of stage."""

from dataclasses import dataclass
from typing import Protocol

import structlog
from celery import Celery

from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_controlplane.db import Sessions, open_engine, open_sessions
from cerebras_controlplane.jobs.claim import Claim
from cerebras_controlplane.queue.celery_app import make_ringer
from cerebras_controlplane.sandbox.process import check_sandbox, clean_environment
from cerebras_controlplane.sandbox.user_python import UserPython, probe_user_python
from cerebras_controlplane.settings import Settings
from cerebras_controlplane.storage.blobs import BlobStore


@dataclass(frozen=True)
class Tools:
    """The open ends of one worker process."""

    settings: Settings
    sessions: Sessions
    blobs: BlobStore
    celery: Celery
    user_python: UserPython


class StageHandler(Protocol):
    """What is particular to compile or to execute. Each may raise `ReportedError`, which fails the stage."""

    kind: StageKind

    def settle(self, tools: Tools, claim: Claim) -> bool:
        """End the stage without a process, if there is nothing to do; True if it did."""

    def prepare(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        """Lay into the run directory what this kind of stage needs."""

    def complete(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        """Keep what a process that succeeded has left."""


def open_tools(settings: Settings) -> Tools:
    """Open database, blobs and broker, and see that user code can be run; raises `ReportedError`."""
    settings.work_folder.mkdir(parents=True, exist_ok=True)
    environment = clean_environment(settings.user_python, settings.work_folder, settings.work_folder)
    user_python = probe_user_python(settings.user_python, environment)
    check_sandbox(user_python, settings.sandbox)
    structlog.get_logger().info("user code", python=str(user_python.executable), sandbox=str(settings.sandbox))
    return Tools(
        settings=settings,
        sessions=open_sessions(open_engine(settings.database_url.get_secret_value())),
        blobs=BlobStore(settings.blob_folder),
        celery=make_ringer(settings.broker_url.get_secret_value()),
        user_python=user_python,
    )
