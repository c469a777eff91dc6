"""The states of a job and of its stages."""

from enum import StrEnum


class StageKind(StrEnum):
    """A part of a job that one worker does. Its value is also the name of the queue that rings for it."""

    COMPILE = "compile"
    EXECUTE = "execute"


QUEUE_OF_STAGE = {StageKind.COMPILE: "compile", StageKind.EXECUTE: "run"}


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StageStatus(StrEnum):
    """WAITING: an earlier stage has to end first. SKIPPED: the artifact existed, so there was nothing to do."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_JOB_STATUSES = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED})
FINAL_STAGE_STATUSES = frozenset(
    {StageStatus.SUCCEEDED, StageStatus.SKIPPED, StageStatus.FAILED, StageStatus.CANCELLED}
)
