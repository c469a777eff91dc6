from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.controlplane.factories import VERSIONS, make_job, make_worker

from cerebras_contract.errors import ErrorCode
from cerebras_contract.states import JobStatus, StageKind, StageStatus
from cerebras_controlplane.artifacts.keys import MadeWith
from cerebras_controlplane.artifacts.repository import register
from cerebras_controlplane.db import Sessions, now, reading, writing
from cerebras_controlplane.jobs import finish, service
from cerebras_controlplane.jobs.claim import Answer, Claim, StageLostError, claim_stage, hold, renew
from cerebras_controlplane.jobs.reconcile import take_from_lost_workers, take_from_predecessor
from cerebras_controlplane.jobs.repository import find_job
from cerebras_controlplane.jobs.state import CHECKPOINT_EVENT, record_event
from cerebras_controlplane.models import Job

LEASE_SECONDS = 600.0
EXPIRED = -1.0
MAX_ATTEMPTS = 3


def claim(sessions: Sessions, kind: StageKind = StageKind.COMPILE, lease: float = LEASE_SECONDS) -> Claim | None:
    return claim_stage(sessions, kind, make_worker(sessions, kind), lease)


def claimed(sessions: Sessions, lease: float = LEASE_SECONDS) -> Claim:
    taken = claim(sessions, lease=lease)
    assert taken is not None
    return taken


def job_of(sessions: Sessions, job_id: str) -> Job:
    with reading(sessions) as session:
        return find_job(session, job_id)


def test_priority_comes_before_age(sessions: Sessions) -> None:
    late = make_job(sessions, job_priority="p3")
    first_p2, second_p2 = make_job(sessions), make_job(sessions, job_priority="p2")
    urgent = make_job(sessions, job_priority="p1")
    order = [claimed(sessions).job_id for _ in range(4)]
    assert order == [urgent, first_p2, second_p2, late]
    assert claim(sessions) is None


def test_execute_is_not_claimed_before_compile_is_done(sessions: Sessions) -> None:
    make_job(sessions)
    assert claim(sessions, StageKind.EXECUTE) is None
    taken = claimed(sessions)
    with writing(sessions) as session:
        finish.succeed(session, hold(session, taken), "done")
    execute = claim(sessions, StageKind.EXECUTE)
    assert execute is not None
    assert execute.compiled_in_job


def test_many_workers_claim_each_stage_once(sessions: Sessions) -> None:
    jobs = {make_job(sessions) for _ in range(12)}
    make_worker(sessions, StageKind.COMPILE)
    with ThreadPoolExecutor(6) as workers:
        claims = list(
            workers.map(lambda _: claim_stage(sessions, StageKind.COMPILE, "worker", LEASE_SECONDS), range(18))
        )
    taken = [one.job_id for one in claims if one is not None]
    assert len(taken) == 12
    assert set(taken) == jobs


def test_what_is_being_compiled_is_not_compiled_beside(sessions: Sessions) -> None:
    first = make_job(sessions, model={"same": 1})
    second = make_job(sessions, model={"same": 1})
    other = make_job(sessions)
    taken = claimed(sessions)
    assert taken.job_id == first
    assert claimed(sessions).job_id == other
    assert claim(sessions) is None
    with writing(sessions) as session:
        finish.succeed(session, hold(session, taken), "done")
    assert claimed(sessions).job_id == second


def test_a_known_artifact_skips_compile_at_submit(sessions: Sessions) -> None:
    make_job(sessions, model={"known": 1})
    taken = claimed(sessions)
    with writing(sessions) as session:
        register(session, taken.source_key, VERSIONS, "cs_1", [])
    again = job_of(sessions, make_job(sessions, model={"known": 1}, max_steps=9))
    assert [stage.status for stage in again.stages] == [StageStatus.SKIPPED, StageStatus.QUEUED]
    assert again.artifact_key == "cs_1"
    with writing(sessions) as session:
        register(session, taken.source_key, MadeWith(compiler="0.2", torch="2.13"), "cs_2", [])
    assert job_of(sessions, make_job(sessions, model={"known": 1})).artifact_key == "cs_1"


def test_a_lease_is_renewed_and_tells_of_a_cancel(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    taken = claimed(sessions, lease=1.0)
    assert renew(sessions, taken, LEASE_SECONDS) is Answer.GO_ON
    with reading(sessions) as session:
        expires = find_job(session, job_id).stages[0].lease_expires_at
        assert expires is not None
        assert expires > now(session) + LEASE_SECONDS / 2
    service.cancel(sessions, job_id)
    assert renew(sessions, taken, LEASE_SECONDS) is Answer.CANCEL


def test_a_worker_whose_stage_was_taken_writes_nothing(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    stale = claimed(sessions, lease=EXPIRED)
    take_from_lost_workers(sessions, MAX_ATTEMPTS)
    assert renew(sessions, stale, LEASE_SECONDS) is Answer.LOST
    fresh = claimed(sessions)
    assert (fresh.job_id, fresh.attempt) == (job_id, 2)
    with pytest.raises(StageLostError), writing(sessions) as session:
        finish.succeed(session, hold(session, stale), "done")
    assert job_of(sessions, job_id).stages[0].status is StageStatus.RUNNING


def test_a_worker_that_starts_again_gives_back_what_its_name_held(sessions: Sessions) -> None:
    mine, other = make_job(sessions), make_job(sessions)
    for name in ("mine", "other"):
        make_worker(sessions, StageKind.COMPILE, name)
        assert claim_stage(sessions, StageKind.COMPILE, name, LEASE_SECONDS) is not None
    take_from_predecessor(sessions, "mine", MAX_ATTEMPTS)
    assert job_of(sessions, mine).stages[0].status is StageStatus.QUEUED
    assert job_of(sessions, other).stages[0].status is StageStatus.RUNNING


def test_a_lease_that_has_not_expired_is_left(sessions: Sessions) -> None:
    make_job(sessions)
    taken = claimed(sessions)
    take_from_lost_workers(sessions, MAX_ATTEMPTS)
    assert renew(sessions, taken, LEASE_SECONDS) is Answer.GO_ON


def test_the_last_lost_attempt_fails_the_job(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    for _ in range(MAX_ATTEMPTS):
        assert claimed(sessions, lease=EXPIRED).job_id == job_id
        take_from_lost_workers(sessions, MAX_ATTEMPTS)
    job = job_of(sessions, job_id)
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code is ErrorCode.WORKER_LOST
    assert claim(sessions) is None


def test_a_lost_stage_of_a_cancelled_job_is_not_queued_again(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    claimed(sessions, lease=EXPIRED)
    service.cancel(sessions, job_id)
    take_from_lost_workers(sessions, MAX_ATTEMPTS)
    assert job_of(sessions, job_id).status is JobStatus.CANCELLED


def test_a_terminal_state_is_written_once(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    taken = claimed(sessions)
    service.cancel(sessions, job_id)
    with writing(sessions) as session:
        finish.cancel(session, hold(session, taken), "asked")
    with pytest.raises(StageLostError), writing(sessions) as session:
        finish.succeed(session, hold(session, taken), "too late")
    assert service.cancel(sessions, job_id).status is JobStatus.CANCELLED


def test_an_attempt_that_saved_something_does_not_count_against_the_job(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    compiling = claimed(sessions)
    with writing(sessions) as session:
        finish.succeed(session, hold(session, compiling), "done")
    for saves in (False, True, False, True, True, False, False):
        taken = claim(sessions, StageKind.EXECUTE, EXPIRED)
        assert taken is not None
        if saves:
            with writing(sessions) as session:
                record_event(session, find_job(session, job_id), CHECKPOINT_EVENT, "checkpoint of step 1")
        take_from_lost_workers(sessions, MAX_ATTEMPTS)
        assert job_of(sessions, job_id).status is JobStatus.RUNNING
    assert claim(sessions, StageKind.EXECUTE, EXPIRED) is not None
    take_from_lost_workers(sessions, MAX_ATTEMPTS)
    job = job_of(sessions, job_id)
    assert (job.status, job.stages[1].attempt) == (JobStatus.FAILED, 8)
