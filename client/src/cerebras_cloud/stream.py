"""Following a job: server-sent events, resumed after a dropped connection without a gap or a repeat."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cerebras_cloud.errors import ConnectionLost
from cerebras_cloud.transport import Transport, job_path
from cerebras_contract.jobs import JobView
from cerebras_contract.wire import LogChunk, MetricBatch, StreamEnd, StreamEventName

FAILURES_BEFORE_TELLING = 3
FollowEvent = LogChunk | MetricBatch | JobView | StreamEnd
MODEL_OF_EVENT: dict[str, type[LogChunk | MetricBatch | JobView | StreamEnd]] = {
    StreamEventName.LOG: LogChunk,
    StreamEventName.METRICS: MetricBatch,
    StreamEventName.JOB: JobView,
    StreamEventName.END: StreamEnd,
}


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event as it came."""

    id: str | None
    name: str
    data: str


def parse_events(chunks: Iterable[bytes]) -> Iterator[ServerEvent | None]:
    """Server-sent events out of bytes cut anywhere; None for each comment (a sign of life).

    Lines are split at newlines alone: JSON may hold the other characters that `str.splitlines` cuts at.
    An event that the end of the stream cuts off is dropped, as the standard says.
    """
    fields: dict[str, str] = {}
    for line in _lines(chunks):
        if line.startswith(":"):
            yield None
        elif line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields['data']}\n{value}" if name == "data" and "data" in fields else value
        elif fields:
            if "data" in fields:
                yield ServerEvent(fields.get("id"), fields.get("event", "message"), fields["data"])
            fields = {}


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Complete lines. Pieces of a long line are joined once, not again for every chunk."""
    pieces: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pieces.append(first)
        for other in others:
            yield b"".join(pieces).removesuffix(b"\r").decode(errors="replace")
            pieces = [other]


def follow(transport: Transport, job_id: str, tell: Callable[[str], object]) -> Iterator[FollowEvent]:
    """What happens to a job, from its first byte to its end. The last item is a `StreamEnd`.

    Raises `ConnectionLost` when a connection has been lost for `Patience.lost_after_seconds`; `tell` is given a
    line when it does not come back at once.
    """
    cursor: str | None = None
    outage = _Outage(transport, tell)
    while True:
        try:
            for event in _events(transport, job_id, cursor):
                outage.over()
                if event is None or event.name not in MODEL_OF_EVENT:
                    continue  # a newer server may tell more than this client knows
                cursor = event.id or cursor
                item = MODEL_OF_EVENT[event.name].model_validate_json(event.data)
                yield item
                if isinstance(item, StreamEnd):
                    return
        except ConnectionLost:
            pass
        outage.wait_before_next_try()


class _Outage:
    """How long a follow has been without contact. It counts from a failure: a paused reader is none."""

    def __init__(self, transport: Transport, tell: Callable[[str], object]) -> None:
        self._transport = transport
        self._tell = tell
        self.over()

    def over(self) -> None:
        self._began_at: float | None = None
        self._failures = 0

    def wait_before_next_try(self) -> None:
        now = time.monotonic()
        self._began_at = self._began_at or now
        patience = self._transport.patience
        if now - self._began_at > patience.lost_after_seconds:
            raise self._transport.connection_lost(f"no contact for {patience.lost_after_seconds:.0f} s")
        if self._failures == FAILURES_BEFORE_TELLING:
            self._tell(f"The cluster does not answer; trying again for {patience.lost_after_seconds:.0f} s.")
        time.sleep(patience.delay_seconds(self._failures))
        self._failures += 1


def _events(transport: Transport, job_id: str, cursor: str | None) -> Iterator[ServerEvent | None]:
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": cursor} if cursor else {})
    silence_seconds = transport.patience.stream_silence_seconds
    with transport.stream(job_path(job_id, "stream"), headers=headers, read_seconds=silence_seconds) as response:
        yield from parse_events(response.iter_bytes())
