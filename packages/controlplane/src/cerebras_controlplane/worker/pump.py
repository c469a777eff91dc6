"""Carries what a running process leaves to the control plane: its events, and the bytes it prints."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from sqlalchemy.orm import Session

from cerebras_contract.events import (
    ArtifactEvent,
    CheckpointEvent,
    FileEvent,
    MetricEvent,
    ProgressEvent,
    RunEvent,
    TrainingStartsEvent,
    WarningEvent,
)
from cerebras_contract.run_directory import RunDirectory
from cerebras_controlplane.db import writing
from cerebras_controlplane.jobs.claim import Claim, hold
from cerebras_controlplane.jobs.state import CHECKPOINT_EVENT, record_event
from cerebras_controlplane.models import Job, StoredFile
from cerebras_controlplane.telemetry import checkpoints, files, logs, metrics
from cerebras_controlplane.telemetry.events_reader import message_of, read_event_lines
from cerebras_controlplane.worker.left_files import LeftFilesError
from cerebras_controlplane.worker.outputs import KeptCheckpoint, keep_checkpoint, keep_file
from cerebras_controlplane.worker.tools import Tools

READ_BYTES = 1 << 20
"""At most so much of each file at a time; a longer line of events is not read."""
MAX_WARNINGS = 100


@dataclass(frozen=True)
class Position:
    """How far the files were read. `log` is None while nothing of the log is to be shown."""

    log: int | None
    events: int = 0
    sequence: int = -1
    warnings: int = 0


@dataclass(frozen=True)
class Arrival:
    """What was read at one time, its bytes already in the blob store."""

    events: list[RunEvent]
    kept: list[KeptCheckpoint]
    files: list[StoredFile]
    warnings: list[str]
    log_sha256: str | None
    log_size_bytes: int


class Pump:
    """Reads a process's log and events from where it last was. Made before the process starts, so that the
    open files are ours, whatever user code puts in their place later."""

    def __init__(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        self._tools, self._claim, self._directory = tools, claim, directory
        self._log = _create(directory.log_of(claim.kind))
        self._events = _create(directory.events)
        # The script's beginning runs in both stages; what the compile stage printed is not shown twice.
        self._at = Position(log=None if claim.compiled_in_job else 0)

    def carry(self) -> bool:
        """Carry what is new, at most a MiB of each file; False if there was nothing.

        The position moves after the commit: what a lost database did not take is read again from the file.
        """
        lines, events_at = self._read_lines()
        log_at, data = self._at.log, b""
        read = read_event_lines(lines, self._at.sequence)
        for event in read.events:
            if log_at is None and isinstance(event, TrainingStartsEvent):
                log_at = event.log_offset_bytes
        if log_at is not None:
            data = os.pread(self._log.fileno(), READ_BYTES, log_at)
        if not lines and not data:
            return False
        arrival = self._store(read.events, read.unreadable, data)
        with writing(self._tools.sessions) as session:
            _record(session, hold(session, self._claim).job, arrival)
        self._at = Position(
            log=None if log_at is None else log_at + len(data),
            events=events_at,
            sequence=max([self._at.sequence, *(event.sequence for event in read.events)]),
            warnings=self._at.warnings + len(arrival.warnings),
        )
        return True

    def carry_rest(self) -> None:
        """Carry everything that is left, once the process has ended."""
        while self.carry():
            pass
        if self._at.log is None:  # training never began, so its log is all there is to read
            self._at = replace(self._at, log=0)
            self.carry_rest()

    def log_end(self, size_bytes: int) -> str:
        """The last bytes of the log, as text for an error message."""
        descriptor = self._log.fileno()
        start = max(0, os.fstat(descriptor).st_size - size_bytes)
        return os.pread(descriptor, size_bytes, start).decode(errors="replace")

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        self._events.close()

    def _read_lines(self) -> tuple[list[bytes], int]:
        """New complete lines and the position after them. A line longer than the limit comes in pieces, of
        which none can be read as an event."""
        start = self._at.events
        data = os.pread(self._events.fileno(), READ_BYTES, start)
        end = len(data) if len(data) == READ_BYTES and b"\n" not in data else data.rfind(b"\n") + 1
        return data[:end].splitlines(), start + end

    def _store(self, events: list[RunEvent], unreadable: int, data: bytes) -> Arrival:
        kept: list[KeptCheckpoint] = []
        stored: list[StoredFile] = []
        warnings = [message_of(event) for event in events if isinstance(event, WarningEvent)]
        if unreadable:
            warnings.append(f"{unreadable} lines of events.jsonl could not be read and were left out")
        for event in events:
            if isinstance(event, CheckpointEvent):
                try:
                    kept.append(keep_checkpoint(self._tools.blobs, self._directory, event))
                except LeftFilesError as error:
                    if not self._directory.checkpoint(event.step).exists():
                        continue  # let go for a newer one before it could be kept
                    warnings.append(f"the checkpoint of step {event.step} was not kept: {error}")
            if isinstance(event, FileEvent):
                try:
                    stored.append(keep_file(self._tools.blobs, self._directory, event.path))
                except LeftFilesError as error:
                    warnings.append(f"a file was not kept: {error}")
        return Arrival(
            events=events,
            kept=kept,
            files=stored,
            warnings=warnings[: MAX_WARNINGS - self._at.warnings],
            log_sha256=self._tools.blobs.put_bytes(data) if data else None,
            log_size_bytes=len(data),
        )


def _create(path: Path) -> BinaryIO:
    path.touch()
    return path.open("rb")


def _record(session: Session, job: Job, arrival: Arrival) -> None:
    metrics.record(session, job, [event for event in arrival.events if isinstance(event, MetricEvent)])
    for event in arrival.events:
        if isinstance(event, ProgressEvent):
            job.progress = event
        elif isinstance(event, ArtifactEvent) and event.compiled:
            record_event(session, job, "artifact", f"compiled in {event.seconds:.1f} s")
    for kept in arrival.kept:
        checkpoints.record(session, job, kept.event.step, kept.files)
        if kept.event.keep is not None:
            checkpoints.let_go(session, job, kept.event.keep, kept.event.keep_every)
        record_event(session, job, CHECKPOINT_EVENT, f"checkpoint of step {kept.event.step}")
    for file in arrival.files:
        if not files.record(session, job, file):
            record_event(session, job, "warning", f"{file.name} was not kept: a job has {files.MAX_FILES} at most")
    for warning in arrival.warnings:
        record_event(session, job, "warning", warning)
    if arrival.log_sha256 is not None:
        logs.append(session, job, arrival.log_sha256, arrival.log_size_bytes)
