"""The database: one Session type for SQLite (embedded) and PostgreSQL (deployed)."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Double, Engine, create_engine, event, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.functions import GenericFunction

Sessions = sessionmaker[Session]
BUSY_TIMEOUT_SECONDS = 30


class database_clock(GenericFunction[float]):  # noqa: N801 - a SQL function, named as one
    """Seconds since 1970-01-01 UTC by the clock that all services share: the database's."""

    type = Double()
    inherit_cache = True


@compiles(database_clock, "sqlite")
def _clock_of_sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_clock, "postgresql")
def _clock_of_postgresql(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch from clock_timestamp()) AS double precision)"


def now(session: Session) -> float:
    """The database's clock, seconds since 1970-01-01 UTC."""
    return session.scalars(select(database_clock())).one()


def open_engine(url: str) -> Engine:
    """An engine for a URL; on SQLite with the settings that let several processes share one file."""
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(_begin(connection)))
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is ours to send, not the driver's
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: Any) -> str:
    # A transaction that reads and then writes fails at once when another wrote in between, whatever the busy
    # timeout; a writer therefore asks for the lock at its first statement.
    return "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN"


def open_sessions(engine: Engine) -> Sessions:
    """Sessions whose objects stay readable after the commit."""
    return sessionmaker(engine, expire_on_commit=False)


@contextmanager
def writing(sessions: Sessions) -> Iterator[Session]:
    """A transaction that writes: committed at the end of the block, rolled back if it raises."""
    with sessions() as session, session.begin():
        session.connection(execution_options={"writes": True})
        yield session


@contextmanager
def reading(sessions: Sessions) -> Iterator[Session]:
    """A transaction that reads one consistent state."""
    with sessions() as session, session.begin():
        yield session
