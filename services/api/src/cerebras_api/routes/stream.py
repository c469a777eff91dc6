"""The follow stream: log, metrics and states of a job as server-sent events, until it has ended."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent

from cerebras_api.context import Context, InContext
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.jobs import JobView, MetricPoint
from cerebras_contract.states import FINAL_JOB_STATUSES
from cerebras_contract.wire import LogChunk, MetricBatch, StreamEnd, StreamEventName
from cerebras_controlplane.db import reading
from cerebras_controlplane.jobs.repository import find_job, view_of
from cerebras_controlplane.telemetry import logs, metrics

POLL_SECONDS = 0.3
LOG_BYTES_PER_EVENT = 64 << 10
POINTS_PER_EVENT = 1000

router = APIRouter(tags=["telemetry"], prefix="/jobs")


@dataclass(frozen=True)
class Cursor:
    """What a follower has seen: bytes of the log, and the last metric. Its text is the id of an event."""

    log_offset: int = 0
    metric_sequence: int = 0

    def __str__(self) -> str:
        return f"{self.log_offset}-{self.metric_sequence}"


@dataclass(frozen=True)
class News:
    """What came after a cursor, read in one transaction, and the cursor behind it."""

    log: bytes
    log_offset: int
    points: list[MetricPoint]
    job: JobView
    is_all: bool
    """Nothing more is there at the moment."""
    cursor: Cursor


def parse_cursor(last_event_id: Annotated[str | None, Header()] = None) -> Cursor:
    """The cursor in `Last-Event-ID`; without one, the beginning."""
    if last_event_id is None:
        return Cursor()
    offset, _, sequence = last_event_id.partition("-")
    if not (offset.isascii() and offset.isdigit() and sequence.isascii() and sequence.isdigit()):
        message = "Last-Event-ID is not the id of an event of this stream"
        raise ReportedError(ErrorReport(code=ErrorCode.REQUEST_INVALID, message=message, advice="Begin without it."))
    return Cursor(min(int(offset[:18]), 2**62), min(int(sequence[:18]), 2**62))


def job_must_exist(context: InContext, job_id: str) -> None:
    """Answer 404 before the stream has begun, since its status cannot change later."""
    with reading(context.sessions) as session:
        find_job(session, job_id)


@router.get("/{job_id}/stream", response_class=EventSourceResponse, dependencies=[Depends(job_must_exist)])
async def stream_job(
    context: InContext, job_id: str, cursor: Annotated[Cursor, Depends(parse_cursor)]
) -> AsyncIterator[ServerSentEvent]:
    """Follow a job to its end; an event's id, sent back as `Last-Event-ID`, resumes behind it."""
    shown: JobView | None = None
    while True:
        news = await to_thread.run_sync(_look, context, job_id, cursor)
        cursor = news.cursor
        for event in _events_of(news, shown):
            yield event
        shown = news.job
        if news.is_all and news.job.status in FINAL_JOB_STATUSES:
            yield _event(StreamEventName.END, StreamEnd(job=news.job), cursor)
            return
        if news.is_all:
            await asyncio.sleep(POLL_SECONDS)


def _look(context: Context, job_id: str, cursor: Cursor) -> News:
    with reading(context.sessions) as session:
        job = find_job(session, job_id)
        log = logs.read(session, context.blobs, job, cursor.log_offset, LOG_BYTES_PER_EVENT)
        page = metrics.page(session, job, None, cursor.metric_sequence, POINTS_PER_EVENT)
        after = Cursor(cursor.log_offset + len(log), page.next_after)
        return News(
            log=log,
            log_offset=cursor.log_offset,
            points=page.points,
            job=view_of(job),
            is_all=after.log_offset >= job.log_size_bytes and len(page.points) < POINTS_PER_EVENT,
            cursor=after,
        )


def _events_of(news: News, shown: JobView | None) -> list[ServerSentEvent]:
    """Metrics come first, with a cursor before this log: whoever stops between the two misses neither."""
    events = []
    if news.points:
        between = Cursor(news.log_offset, news.cursor.metric_sequence)
        events.append(_event(StreamEventName.METRICS, MetricBatch(points=news.points), between))
    if news.log:
        chunk = LogChunk(offset=news.log_offset, data_base64=base64.b64encode(news.log).decode())
        events.append(_event(StreamEventName.LOG, chunk, news.cursor))
    if news.job != shown:
        events.append(_event(StreamEventName.JOB, news.job, news.cursor))
    return events


def _event(
    name: StreamEventName, data: LogChunk | MetricBatch | JobView | StreamEnd, cursor: Cursor
) -> ServerSentEvent:
    # The models' own JSON: it writes NaN and infinities as strings, which the default encoder cannot.
    return ServerSentEvent(raw_data=data.model_dump_json(), event=name, id=str(cursor))
