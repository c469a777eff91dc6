"""Brings faults that are sent to a job into the run directory of its execute stage."""

import os
import time

from cerebras_contract.faults import SentFault
from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_controlplane.db import reading, writing
from cerebras_controlplane.jobs.claim import Claim, hold
from cerebras_controlplane.jobs.faults import faults_of_steps, has_waiting, take_faults
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.worker.tools import Tools

LOOK_SECONDS = 1.0


class FaultFile:
    """`faults.jsonl`. Made before the process starts: what user code puts in its place later is never written to."""

    def __init__(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        self._tools, self._claim = tools, claim
        self._next_look = 0.0
        self._file = os.open(directory.faults, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        with reading(tools.sessions) as session:
            self._append(faults_of_steps(session, find_job(session, claim.job_id)))

    def carry(self) -> None:
        """Append what was sent since the last time; looks once a second at most."""
        if self._claim.kind is not StageKind.EXECUTE or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        with reading(self._tools.sessions) as session:
            if not has_waiting(session, find_job(session, self._claim.job_id)):
                return
        with writing(self._tools.sessions) as session:
            faults = take_faults(session, hold(session, self._claim).job)
        self._append(faults)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, faults: list[SentFault]) -> None:
        lines = [fault.model_dump_json(exclude_none=True) + "\n" for fault in faults]
        if lines:
            os.write(self._file, "".join(lines).encode())
