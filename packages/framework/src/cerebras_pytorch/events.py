"""Appends to `events.jsonl`: one line an event, each with the next sequence number."""

import time
from pathlib import Path
from typing import TypeVar

from cerebras_contract.events import (
    ArtifactEvent,
    CheckpointEvent,
    FileEvent,
    MetricEvent,
    ProgressEvent,
    TrainingStartsEvent,
    WarningEvent,
)

Event = TypeVar(
    "Event", MetricEvent, ProgressEvent, CheckpointEvent, ArtifactEvent, TrainingStartsEvent, FileEvent, WarningEvent
)


class EventWriter:
    """Writes the events of one process; an older file at the path is replaced."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("wb", buffering=0)
        self._sequence = self._size_bytes = 0

    def append(self, kind: type[Event], **fields: object) -> None:
        """Append one event as a whole line, or none of it and raise `OSError`."""
        self._sequence += 1
        event = kind.model_validate({"sequence": self._sequence, "time": time.time(), **fields})
        line = event.model_dump_json().encode() + b"\n"
        try:
            written = 0
            while written < len(line):  # a disk that is almost full takes a part of it
                written += self._stream.write(line[written:])
        except OSError:
            self._stream.truncate(self._size_bytes)
            self._stream.seek(self._size_bytes)
            raise
        self._size_bytes += len(line)

    def close(self) -> None:
        self._stream.close()
