"""Metrics: a value by job, name and step; a newer attempt replaces an older one's."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from cerebras_contract.events import MetricEvent
from cerebras_contract.jobs import MetricPage, MetricPoint
from cerebras_controlplane.models import Job, Metric

ROWS_PER_STATEMENT = 500


def record(session: Session, job: Job, events: list[MetricEvent]) -> None:
    """Keep the values of some events, each with the next sequence number of its job."""
    values = {(name, event.step): (value, event) for event in events for name, value in event.values.items()}
    rows: list[dict[str, Any]] = []
    for (name, step), (value, event) in values.items():
        job.metric_sequence += 1
        rows.append(
            {
                "job_number": job.number,
                "name": name,
                "step": step,
                "value": value,
                "time": event.time,
                "device_seconds": event.device_seconds,
                "sequence": job.metric_sequence,
            }
        )
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        _upsert(session, rows[start : start + ROWS_PER_STATEMENT])


def _upsert(session: Session, rows: list[dict[str, Any]]) -> None:
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert = dialect.insert(Metric).values(rows)
    replaced = {name: insert.excluded[name] for name in ("value", "time", "device_seconds", "sequence")}
    session.execute(insert.on_conflict_do_update(index_elements=["job_number", "name", "step"], set_=replaced))


def page(session: Session, job: Job, name: str | None, after: int, limit: int) -> MetricPage:
    """Points in the order they were recorded, from the one after `after`; all names, or one."""
    query = select(Metric).where(Metric.job_number == job.number, Metric.sequence > after)
    if name is not None:
        query = query.where(Metric.name == name)
    rows = session.scalars(query.order_by(Metric.sequence).limit(limit)).all()
    points = [
        MetricPoint(
            name=row.name,
            step=row.step,
            value=row.value,
            time=row.time,
            device_seconds=row.device_seconds,
        )
        for row in rows
    ]
    return MetricPage(points=points, next_after=rows[-1].sequence if rows else after)
