import itertools

import pytest
from tests.unit.controlplane.factories import make_job

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_contract.states import (
    FINAL_JOB_STATUSES,
    FINAL_STAGE_STATUSES,
    JobStatus,
    StageKind,
    StageStatus,
)
from cerebras_controlplane.db import Sessions, writing
from cerebras_controlplane.jobs import finish
from cerebras_controlplane.jobs.repository import find_job, list_events
from cerebras_controlplane.jobs.state import (
    JOB_TRANSITIONS,
    STAGE_TRANSITIONS,
    ForbiddenTransitionError,
    change_job,
    change_stage,
)


def test_every_state_has_a_row_and_final_ones_lead_nowhere() -> None:
    assert set(JOB_TRANSITIONS) == set(JobStatus)
    assert set(STAGE_TRANSITIONS) == set(StageStatus)
    assert {status for status, following in JOB_TRANSITIONS.items() if not following} == FINAL_JOB_STATUSES
    assert {status for status, following in STAGE_TRANSITIONS.items() if not following} == FINAL_STAGE_STATUSES


@pytest.mark.parametrize(("old", "new"), list(itertools.product(JobStatus, JobStatus)))
def test_a_job_changes_only_along_the_table(sessions: Sessions, old: JobStatus, new: JobStatus) -> None:
    job_id = make_job(sessions)
    with writing(sessions) as session:
        job = find_job(session, job_id)
        job.status = old
        if new in JOB_TRANSITIONS[old]:
            change_job(session, job, new, "because")
            assert job.status is new
            assert (job.finished_at is not None) == (new in FINAL_JOB_STATUSES)
            assert list_events(session, job).events[-1].kind == f"job.{new}"
        else:
            with pytest.raises(ForbiddenTransitionError):
                change_job(session, job, new, "because")
            assert job.status is old


@pytest.mark.parametrize(("old", "new"), list(itertools.product(StageStatus, StageStatus)))
def test_a_stage_changes_only_along_the_table(sessions: Sessions, old: StageStatus, new: StageStatus) -> None:
    job_id = make_job(sessions)
    with writing(sessions) as session:
        stage = find_job(session, job_id).stages[0]
        stage.status, stage.token = old, "token"
        if new in STAGE_TRANSITIONS[old]:
            change_stage(session, stage, new, "because")
            assert (stage.status, stage.token) == (new, None)
        else:
            with pytest.raises(ForbiddenTransitionError):
                change_stage(session, stage, new, "because")
            assert (stage.status, stage.token) == (old, "token")


def test_events_are_numbered_within_a_job(sessions: Sessions) -> None:
    for job_id in (make_job(sessions), make_job(sessions)):
        with writing(sessions) as session:
            job = find_job(session, job_id)
            finish.cancel(session, job.stages[0], "no longer wanted")
            events = list_events(session, job).events
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))


def test_a_failed_stage_ends_its_job_and_the_waiting_stage(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    error = ErrorReport(code=ErrorCode.SCRIPT_RAISED, message="ValueError: x")
    with writing(sessions) as session:
        job = find_job(session, job_id)
        change_stage(session, job.stages[0], StageStatus.RUNNING, "")
        change_job(session, job, JobStatus.RUNNING, "")
        finish.fail(session, job.stages[0], error)
    assert [stage.status for stage in job.stages] == [StageStatus.FAILED, StageStatus.CANCELLED]
    assert (job.status, job.error) == (JobStatus.FAILED, error)


def test_a_stage_that_succeeds_while_its_job_is_cancelled_starts_no_other(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    with writing(sessions) as session:
        job = find_job(session, job_id)
        compile_stage = next(stage for stage in job.stages if stage.kind is StageKind.COMPILE)
        change_stage(session, compile_stage, StageStatus.RUNNING, "")
        change_job(session, job, JobStatus.RUNNING, "")
        change_job(session, job, JobStatus.CANCELLING, "")
        finish.succeed(session, compile_stage, "done")
    assert [stage.status for stage in job.stages] == [StageStatus.SUCCEEDED, StageStatus.CANCELLED]
    assert job.status is JobStatus.CANCELLED
