"""Reads lines of events.jsonl. They come from user code, so a line may hold anything."""

import math
from dataclasses import dataclass

from pydantic import ValidationError

from cerebras_contract.events import (
    RUN_EVENT,
    ArtifactEvent,
    CheckpointEvent,
    MetricEvent,
    ProgressEvent,
    RunEvent,
    TrainingStartsEvent,
    WarningEvent,
)

MAX_COUNT = 2**53  # beyond it JSON readers lose digits
MAX_NAME_CHARACTERS = 200
MAX_VALUES_PER_EVENT = 1000
MAX_MESSAGE_CHARACTERS = 2000


@dataclass(frozen=True)
class EventLines:
    """The events of some lines, and how many lines were none."""

    events: list[RunEvent]
    unreadable: int


def read_event_lines(lines: list[bytes], after: int) -> EventLines:
    """Parse lines, leaving out events whose sequence is not above `after` or an earlier line's."""
    events: list[RunEvent] = []
    unreadable = 0
    for line in lines:
        event = _read(line)
        if event is None:
            unreadable += 1
        elif event.sequence > after:
            after = event.sequence
            events.append(event)
    return EventLines(events, unreadable)


def _read(line: bytes) -> RunEvent | None:
    try:
        event = RUN_EVENT.validate_json(line)
    except ValidationError:
        return None
    return event if _is_sane(event) else None


def _is_sane(event: RunEvent) -> bool:
    """The database and JSON can hold it; of all numbers only the values of metrics may be NaN or infinite."""
    counts = [event.sequence, getattr(event, "step", 0), getattr(event, "max_steps", 0) or 0]
    numbers = [event.time]
    match event:
        case MetricEvent():
            numbers.append(event.device_seconds or 0.0)
            names_fit = all(0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable() for name in event.values)
            if len(event.values) > MAX_VALUES_PER_EVENT or not names_fit:
                return False
        case ProgressEvent():
            numbers += [event.wall_samples_per_second, event.device_samples_per_second or 0.0]
        case ArtifactEvent():
            numbers.append(event.seconds)
        case CheckpointEvent():
            counts += [event.keep or 0, event.keep_every or 0]
        case TrainingStartsEvent():
            counts.append(event.log_offset_bytes)
    return all(map(math.isfinite, numbers)) and all(0 <= count <= MAX_COUNT for count in counts)


def message_of(warning: WarningEvent) -> str:
    """A warning's text, cut to what a list of events can show."""
    return warning.message.replace("\0", "")[:MAX_MESSAGE_CHARACTERS]
