import pytest
from tests.unit.controlplane.factories import make_job

from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_contract.faults import SentFault
from cerebras_controlplane.db import Sessions, reading, writing
from cerebras_controlplane.jobs import faults, service
from cerebras_controlplane.jobs.repository import find_job, list_events

LOSS = SentFault(kind="lose_system")
LATER = SentFault(kind="slow_link", factor=4.0, step=9)


def taken(sessions: Sessions, job_id: str) -> list[SentFault]:
    with writing(sessions) as session:
        job = find_job(session, job_id)
        waits = faults.has_waiting(session, job)
        found = faults.take_faults(session, job)
        assert waits == bool(found)
        return found


def test_a_fault_is_given_once_and_one_of_a_step_to_every_attempt(sessions: Sessions) -> None:
    job_id, other = make_job(sessions), make_job(sessions)
    faults.send_fault(sessions, job_id, LOSS, None)
    faults.send_fault(sessions, job_id, LATER, None)
    assert taken(sessions, other) == []
    assert taken(sessions, job_id) == [LOSS, LATER]
    assert taken(sessions, job_id) == []
    with reading(sessions) as session:
        job = find_job(session, job_id)
        assert not faults.has_waiting(session, job)
        assert faults.faults_of_steps(session, job) == [LATER]
        told = [event.message for event in list_events(session, job).events if event.kind == "fault.sent"]
    assert told == ["lose_system", "slow_link, step 9, factor 4.0"]


def test_a_retry_sends_no_second_one(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    for _ in range(2):
        faults.send_fault(sessions, job_id, LOSS, "key")
    faults.send_fault(sessions, job_id, LOSS, "another key")
    assert taken(sessions, job_id) == [LOSS, LOSS]


def test_a_job_that_has_ended_takes_none(sessions: Sessions) -> None:
    job_id = make_job(sessions)
    service.cancel(sessions, job_id)
    with pytest.raises(ReportedError, match="is cancelled") as refused:
        faults.send_fault(sessions, job_id, LOSS, None)
    assert refused.value.report.code is ErrorCode.CONFLICT
    with pytest.raises(ReportedError) as missing:
        faults.send_fault(sessions, "job-none", LOSS, None)
    assert missing.value.report.code is ErrorCode.NOT_FOUND


def test_a_job_takes_so_many_at_most(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_FAULTS", 2)
    job_id = make_job(sessions)
    for _ in range(2):
        faults.send_fault(sessions, job_id, LOSS, None)
    with pytest.raises(ReportedError, match="was sent 2 faults already"):
        faults.send_fault(sessions, job_id, LOSS, None)
