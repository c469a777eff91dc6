"""What the API answers to good, bad and hostile requests; the real application over a real SQLite file."""

import hashlib
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.integration.workers.harness import tar_of

from cerebras_contract.errors import ErrorCode
from cerebras_contract.wire import ErrorResponse

BUNDLE = tar_of({"train.py": b"print(1)", "run.yaml": b"{}"})
SHA256 = hashlib.sha256(BUNDLE).hexdigest()
SPEC: dict[str, Any] = {"bundle": SHA256, "script": "train.py"}


def upload(client: TestClient) -> None:
    assert client.put(f"/v1/bundles/{SHA256}", content=BUNDLE).status_code == 201


def code_of(answer: Any) -> ErrorCode:
    return ErrorResponse.model_validate_json(answer.content).error.code


def test_health_needs_no_key_and_says_what_is_down(client: TestClient) -> None:
    answer = client.get("/v1/health", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert answer.json()["database"] == "ok"
    assert "canary" not in answer.text


@pytest.mark.parametrize("given", ["", "Bearer wrong", "Bearer schlüssel".encode(), "Basic canary-api-key"])
def test_a_wrong_key_is_refused(client: TestClient, given: str | bytes) -> None:
    answer = client.get("/v1/cluster", headers={"Authorization": given})
    assert answer.status_code == 401
    assert code_of(answer) is ErrorCode.AUTHENTICATION_FAILED


def test_a_bundle_is_uploaded_once_and_found(client: TestClient) -> None:
    assert code_of(client.get(f"/v1/bundles/{SHA256}")) is ErrorCode.NOT_FOUND
    upload(client)
    upload(client)
    assert client.get(f"/v1/bundles/{SHA256}").json() == {
        "sha256": SHA256,
        "size_bytes": len(BUNDLE),
        "files": 2,
    }


def test_a_bundle_with_another_digest_is_refused(client: TestClient) -> None:
    answer = client.put(f"/v1/bundles/{'0' * 64}", content=BUNDLE)
    assert (answer.status_code, code_of(answer)) == (422, ErrorCode.BUNDLE_INVALID)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"bundle": "0" * 64}, ErrorCode.BUNDLE_MISSING),
        ({"script": "other.py"}, ErrorCode.SCRIPT_MISSING),
        ({"configuration": {"runconfig": {"system": "cs-99"}}}, ErrorCode.CONFIG_INVALID),
        ({"configuration": {"runconfig": {"max_step": 3}}}, ErrorCode.REQUEST_INVALID),
    ],
)
def test_a_job_that_cannot_run_is_refused_at_once(client: TestClient, changes: dict[str, Any], code: ErrorCode) -> None:
    upload(client)
    answer = client.post("/v1/jobs", json=SPEC | changes)
    assert (answer.status_code, code_of(answer)) == (422, code)
    assert client.get("/v1/jobs").json()["jobs"] == []


def test_a_refused_request_does_not_repeat_its_values(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json=SPEC | {"token": "canary-secret", "arguments": "canary-secret"})
    assert answer.status_code == 422
    assert "arguments" in answer.text
    assert "token" in answer.text
    assert "canary" not in answer.text


def test_one_idempotency_key_makes_one_job(client: TestClient) -> None:
    upload(client)
    headers = {"Idempotency-Key": "k1"}
    first = client.post("/v1/jobs", json=SPEC, headers=headers)
    again = client.post("/v1/jobs", json=SPEC, headers=headers)
    other = client.post("/v1/jobs", json=SPEC | {"arguments": ["x"]}, headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json() == again.json()
    assert code_of(other) is ErrorCode.CONFLICT
    assert len(client.get("/v1/jobs").json()["jobs"]) == 1


def test_jobs_are_listed_newest_first_page_by_page(client: TestClient) -> None:
    upload(client)
    ids = [client.post("/v1/jobs", json=SPEC | {"name": str(n)}).json()["id"] for n in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = client.get("/v1/jobs", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert code_of(client.get("/v1/jobs?cursor=x")) is ErrorCode.REQUEST_INVALID


@pytest.mark.parametrize(
    "path",
    [
        "jobs/job-x",
        "jobs/job-x/logs",
        "jobs/job-x/stream",
        "jobs/job-x/metrics",
        "jobs/job-x/events",
        "jobs/job-x/checkpoints",
        "jobs/job-x/artifact",
        "nothing",
    ],
)
def test_what_is_not_there_is_not_found(client: TestClient, path: str) -> None:
    answer = client.get(f"/v1/{path}")
    assert (answer.status_code, code_of(answer)) == (404, ErrorCode.NOT_FOUND)


def test_a_job_without_artifact_or_checkpoint_says_so(client: TestClient) -> None:
    upload(client)
    job_id = client.post("/v1/jobs", json=SPEC).json()["id"]
    assert client.get(f"/v1/jobs/{job_id}/checkpoints").json() == {"checkpoints": []}
    assert client.get(f"/v1/jobs/{job_id}/files").json() == {"files": []}
    for path in ("artifact", "artifact/files/plan.json", "checkpoints/3/files/model.safetensors", "files/profile.json"):
        assert client.get(f"/v1/jobs/{job_id}/{path}").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1"])
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/v1/health", headers={"Host": host})
    assert (answer.status_code, code_of(answer)) == (403, ErrorCode.REQUEST_INVALID)


@pytest.mark.parametrize("host", ["127.0.0.1:8790", "localhost", "[::1]:80"])
def test_our_own_hosts_are_served(client: TestClient, host: str) -> None:
    assert client.get("/v1/health", headers={"Host": host}).status_code == 200


def test_a_web_page_of_another_origin_changes_nothing(client: TestClient) -> None:
    upload(client)
    answer = client.post("/v1/jobs", json=SPEC, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert client.get("/v1/jobs").json()["jobs"] == []
    assert client.post("/v1/jobs", json=SPEC, headers={"Origin": "http://localhost:3000"}).status_code == 201


def test_every_route_is_documented(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/v1/health",
        "/v1/cluster",
        "/v1/bundles/{sha256}",
        "/v1/jobs",
        "/v1/jobs/{job_id}",
        "/v1/jobs/{job_id}/cancel",
        "/v1/jobs/{job_id}/faults",
        "/v1/jobs/{job_id}/files",
        "/v1/jobs/{job_id}/files/{name}",
        "/v1/jobs/{job_id}/events",
        "/v1/jobs/{job_id}/logs",
        "/v1/jobs/{job_id}/metrics",
        "/v1/jobs/{job_id}/stream",
        "/v1/jobs/{job_id}/checkpoints",
        "/v1/jobs/{job_id}/checkpoints/{step}/files/{name}",
        "/v1/jobs/{job_id}/artifact",
        "/v1/jobs/{job_id}/artifact/files/{name}",
    }
