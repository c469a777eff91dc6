"""Requests: tried again where that is safe, and errors that say what to do and hold no secret."""

import socket
from pathlib import Path

import pytest
from tests.unit.client.conftest import AT_ONCE
from tests.unit.client.stand_in import JOB_ID

from cerebras_cloud.client import Client
from cerebras_cloud.connection import Endpoint, find_endpoint
from cerebras_cloud.errors import ApiError, BadInput, BundleError, ConnectionLost, ExitCode
from cerebras_cloud.submission import Submission
from cerebras_cloud.transport import Patience
from cerebras_contract.cluster import Connection
from cerebras_contract.errors import ErrorCode
from cerebras_contract.jobs import JobSpec

SPEC = JobSpec(bundle="0" * 64, script="train.py")
SECRET = "a-key-nobody-may-read"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_job_whose_answer_was_lost_is_not_made_twice(client, stand_in, status):
    stand_in.faults.extend([status, status])
    assert client.jobs.create(SPEC).id == JOB_ID
    assert stand_in.requests == ["POST /v1/jobs"] * 3
    assert list(stand_in.specs.values()) == [SPEC]  # all three under one idempotency key


def test_two_jobs_have_two_keys_unless_the_caller_says_otherwise(client, stand_in):
    client.jobs.create(SPEC)
    client.jobs.create(SPEC)
    assert len(stand_in.specs) == 2
    client.jobs.create(SPEC, "mine")
    client.jobs.create(SPEC, "mine")
    assert len(stand_in.specs) == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print()")
    return tmp_path


def test_an_upload_is_sent_again_from_its_start_and_a_known_bundle_not_at_all(client, stand_in, folder):
    stand_in.faults.extend([0, 503])
    told: list[str] = []
    submission = Submission(folder / "train.py", name="first", arguments=("--x",))
    client.jobs.submit(submission, told.append)
    assert [request.split()[0] for request in stand_in.requests] == ["GET", "PUT", "PUT", "POST"]
    (spec,) = stand_in.specs.values()
    assert (spec.name, spec.script, spec.arguments, [spec.bundle]) == (
        "first", "train.py", ["--x"], list(stand_in.bundles)
    )  # fmt: skip
    client.jobs.submit(submission, told.append)
    assert [request.split()[0] for request in stand_in.requests[4:]] == ["GET", "POST"]
    assert told == ["bundle: 1 files, 7 B", "bundle: 1 files, 7 B", "the cluster has this bundle already"]


def test_a_script_in_a_folder_below_the_root_is_named_from_there(client, stand_in, folder):
    (folder / "src").mkdir()
    (folder / "src" / "other.py").write_text("")
    client.jobs.submit(Submission(folder / "src" / "other.py", root=folder, configuration_file=folder / "run.yaml"))
    (spec,) = stand_in.specs.values()
    assert (spec.script, spec.configuration_path) == ("src/other.py", "run.yaml")


def test_what_cannot_be_submitted_is_refused_before_anything_is_sent(client, stand_in, folder):
    (folder / ".cerebrasignore").write_text("*.py\n")
    with pytest.raises(BundleError, match="train.py is left out by an ignore rule"):
        client.jobs.submit(Submission(folder / "train.py"))
    for submission, message in (
        (Submission(folder / "no.py"), "no.py does not exist"),
        (Submission(folder), "is a folder, not a script"),
        (Submission(folder / "train.py", root=folder / "src"), "there is no folder"),
        (Submission(Path(__file__), root=folder), "choose a --root that holds the script"),
    ):
        with pytest.raises(BadInput, match=message):
            client.jobs.submit(submission)
    assert stand_in.requests == []


def test_an_api_that_stays_away_is_given_up_with_advice(client, stand_in):
    stand_in.faults.extend([503] * 3)
    with pytest.raises(ConnectionLost, match=r"cannot reach the cluster at .*HTTP 503.*cerebras-cloud up --detach"):
        client.jobs.get(JOB_ID)
    assert len(stand_in.requests) == AT_ONCE.attempts


def test_an_api_that_is_not_there_is_given_up():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: a connection is refused
        endpoint = Endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}", SECRET)
        with Client(endpoint, AT_ONCE) as client, pytest.raises(ConnectionLost) as lost:
            client.jobs.get(JOB_ID)
    assert lost.value.exit_code == ExitCode.UNREACHABLE
    assert SECRET not in str(lost.value)


def test_the_advice_of_a_lost_connection_names_the_home_that_was_asked_for(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "connection.json").write_text(Connection(url=url).model_dump_json())
        (tmp_path / "api_key").write_text(SECRET)
        with Client(find_endpoint(tmp_path), AT_ONCE) as client, pytest.raises(ConnectionLost) as lost:
            client.jobs.get(JOB_ID)
    assert f"cerebras-cloud up --detach --home {tmp_path}`" in str(lost.value)


def test_a_job_that_does_not_exist_is_not_asked_for_again(client, stand_in):
    with pytest.raises(ApiError, match="there is no job job-9") as refused:
        client.jobs.get("job-9")
    assert refused.value.exit_code == ExitCode.NOT_FOUND
    assert len(stand_in.requests) == 1


@pytest.mark.parametrize("job_id", ["", "..", "../bundles/x", "a b?c=d#e", "job-1/stream", "job-1\n"])
def test_what_is_no_job_id_is_not_asked_for(client, stand_in, job_id):
    with pytest.raises(BadInput, match="is not a job's id"):
        client.jobs.get(job_id)
    assert stand_in.requests == []


def test_a_page_that_is_not_of_the_api_is_said_so(client, stand_in):
    stand_in.faults.append(418)
    with pytest.raises(ApiError, match="GET /v1/cluster was answered with HTTP 418") as refused:
        client.cluster.get()
    assert refused.value.report.code is ErrorCode.INTERNAL


def test_the_key_is_in_no_repr_and_no_error(endpoint):
    wrong = Endpoint(endpoint.url, SECRET)
    with Client(wrong, AT_ONCE) as client, pytest.raises(ApiError) as refused:
        client.jobs.get(JOB_ID)
    assert refused.value.exit_code == ExitCode.AUTHENTICATION
    texts = [repr(wrong), str(wrong), repr(vars(client)), repr(refused.value), str(refused.value)]
    assert not [text for text in texts if SECRET in text]


@pytest.mark.parametrize("key", ["", SECRET + "\n", f"{SECRET} x", SECRET + "é", f"{SECRET}\x00"])
def test_a_key_that_cannot_be_one_is_refused_without_being_shown(key):
    with pytest.raises(BadInput, match="API key") as refused:
        Endpoint("http://127.0.0.1:1", key)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", ["http://[", "http://host:port"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(BadInput, match="is not a URL"):
        Client(Endpoint(url, "k"))


def test_pauses_double_up_to_a_limit():
    patience = Patience(first_delay_seconds=1, longest_delay_seconds=4)
    for attempt, longest in enumerate([1, 2, 4, 4, 4]):
        assert longest / 2 <= patience.delay_seconds(attempt) <= longest
