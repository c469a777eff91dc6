import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable
from tests.unit.controlplane.factories import make_job

from cerebras_controlplane.db import Sessions, database_clock, now, open_engine, reading, writing
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.jobs.state import record_event
from cerebras_controlplane.migrations.run import migrate
from cerebras_controlplane.models import Base


def test_the_migrations_lead_to_the_models(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/database.sqlite"
    migrate(url)
    migrate(url)
    with open_engine(url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_clock_is_wall_time(sessions: Sessions) -> None:
    before = time.time()
    with reading(sessions) as session:
        told = now(session)
    assert before - 0.01 <= told <= time.time() + 0.01


def test_writers_wait_for_each_other(sessions: Sessions) -> None:
    """Each reads before it writes: without BEGIN IMMEDIATE some would fail with a locked database."""
    job_id = make_job(sessions)

    def write(number: int) -> None:
        with writing(sessions) as session:
            record_event(session, find_job(session, job_id), "test", str(number))

    with reading(sessions) as session:
        before = find_job(session, job_id).event_sequence
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(40)))
    with reading(sessions) as session:
        assert find_job(session, job_id).event_sequence == before + 40


def test_the_same_shape_can_be_said_to_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in Base.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect))
    assert "clock_timestamp" in str(database_clock().compile(dialect=dialect))
