"""Workers that were heard of, and the versions in their user's Python."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from cerebras_contract.states import StageKind, StageStatus
from cerebras_contract.systems import system_names
from cerebras_contract.wire import ClusterView, WorkerView
from cerebras_controlplane.artifacts.keys import MadeWith
from cerebras_controlplane.db import now
from cerebras_controlplane.jobs.repository import count_stages
from cerebras_controlplane.models import Worker

ALIVE_SECONDS = 15.0
FORGOTTEN_SECONDS = 3600.0


def register_worker(session: Session, name: str, kind: StageKind, made_with: MadeWith) -> None:
    """Note that a worker lives and has nothing to do."""
    session.merge(
        Worker(
            name=name,
            kind=kind,
            last_seen=now(session),
            busy_with=None,
            compiler_version=made_with.compiler,
            torch_version=made_with.torch,
            processor=made_with.processor or "",
        )
    )


def hear_of_worker(session: Session, name: str, job_id: str) -> None:
    """Note that a worker lives, and the job it is busy with."""
    worker = session.get_one(Worker, name)
    worker.last_seen, worker.busy_with = now(session), job_id


def live_versions(session: Session) -> list[MadeWith]:
    """What live compile workers would compile with, each once."""
    rows = session.execute(
        select(Worker.compiler_version, Worker.torch_version, Worker.processor)
        .where(Worker.kind == StageKind.COMPILE, Worker.last_seen > now(session) - ALIVE_SECONDS)
        .distinct()
    )
    return [MadeWith(compiler=compiler, torch=torch, processor=processor) for compiler, torch, processor in rows]


def view_cluster(session: Session) -> ClusterView:
    """Workers heard of in the last hour, systems, and how much there is to do."""
    time = now(session)
    workers = session.scalars(select(Worker).where(Worker.last_seen > time - FORGOTTEN_SECONDS).order_by(Worker.name))
    return ClusterView(
        workers=[
            WorkerView(
                name=worker.name,
                stage=worker.kind,
                alive=worker.last_seen > time - ALIVE_SECONDS,
                busy_with=worker.busy_with,
                last_seen=worker.last_seen,
            )
            for worker in workers
        ],
        systems=system_names(),
        queued=count_stages(session, StageStatus.QUEUED),
        running=count_stages(session, StageStatus.RUNNING),
    )
