"""Keeps a claimed stage: renews its lease from a thread of its own, whatever the process does."""

import threading
from types import TracebackType

import structlog
from sqlalchemy.exc import OperationalError

from cerebras_controlplane.db import Sessions
from cerebras_controlplane.jobs.claim import Answer, Claim, renew

LONGEST_INTERVAL_SECONDS = 1.0  # a cancel is heard of within it
RENEWALS_PER_LEASE = 4

log = structlog.get_logger()


class Lease:
    """A context in which the stage stays this worker's; `answer` is what the last heartbeat was told."""

    def __init__(self, sessions: Sessions, claim: Claim, lease_seconds: float) -> None:
        self.answer = Answer.GO_ON
        self._sessions, self._claim, self._lease_seconds = sessions, claim, lease_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        interval_seconds = min(LONGEST_INTERVAL_SECONDS, self._lease_seconds / RENEWALS_PER_LEASE)
        while self.answer is not Answer.LOST and not self._ended.wait(interval_seconds):
            try:
                self.answer = renew(self._sessions, self._claim, self._lease_seconds)
            except OperationalError as error:
                # The process runs on: if the database is back in time nothing was lost.
                log.warning("cannot renew the lease", job=self._claim.job_id, reason=type(error).__name__)
