"""A job from submit to its end, through real workers and a real queue."""

import hashlib
import math

import pytest
from tests.integration.workers.harness import TRAINING, Cluster

from cerebras_contract.errors import ErrorCode
from cerebras_contract.jobs import ArtifactView, CheckpointList, MetricPage
from cerebras_contract.states import JobStatus, StageStatus

pytestmark = pytest.mark.integration

ODD_BYTES = """
import sys
print("shown by the compile stage, not twice")
compile_model()
sys.stdout.buffer.write(bytes(range(256)) * 20 + b"no newline at the end")
"""


def test_a_job_compiles_then_executes(shared_cluster: Cluster) -> None:
    job = shared_cluster.finished(shared_cluster.submit(TRAINING).id)
    assert [stage.status for stage in job.stages] == [StageStatus.SUCCEEDED, StageStatus.SUCCEEDED]
    assert (job.step, job.max_steps) == (5, 5)
    assert shared_cluster.log_of(job.id) == b"the beginning\n" + b"".join(b"step %d\n" % n for n in range(1, 6))
    assert shared_cluster.event_kinds(job.id) == [
        "job.queued",
        "compile.queued",
        "compile.running",
        "job.running",
        "artifact",
        "compile.succeeded",
        "execute.queued",
        "execute.running",
        "checkpoint",
        "execute.succeeded",
        "job.succeeded",
    ]


def test_checkpoints_and_the_artifact_are_downloaded_as_they_were_written(shared_cluster: Cluster) -> None:
    script = TRAINING + "# one that keeps a checkpoint"
    job = shared_cluster.finished(shared_cluster.submit(script).id)
    base = f"/v1/jobs/{job.id}"
    checkpoints = CheckpointList.model_validate_json(shared_cluster.client.get(f"{base}/checkpoints").content)
    assert [checkpoint.step for checkpoint in checkpoints.checkpoints] == [5]
    assert set(checkpoints.checkpoints[0].files) == {"checkpoint.json", "model.safetensors"}
    weights = shared_cluster.client.get(f"{base}/checkpoints/5/files/model.safetensors")
    assert weights.content == b"weights of step 5"
    assert weights.headers["etag"] == f'"{hashlib.sha256(weights.content).hexdigest()}"'
    artifact = ArtifactView.model_validate_json(shared_cluster.client.get(f"{base}/artifact").content)
    assert artifact.artifact_key == job.artifact_key
    plan = shared_cluster.client.get(f"{base}/artifact/files/plan.json")
    assert plan.content == b"program of " + script.encode()
    assert shared_cluster.client.get(f"{base}/artifact/files/..%2F..%2Fapi_key").status_code == 404


LEAVES = """
compile_model()
leave("profile_1_2.json", b"first")
leave("code/traces/mine.json", b"second")
leave("profile_1_2.json", b"newer")
(directory.root / "link").symlink_to("/etc/passwd")
emit(FileEvent, path="link")
emit(FileEvent, path="../outside")
emit(FileEvent, path="missing")
leave("large.json", bytes(65 << 20))
directory.summary.write_bytes(b"how it went")
"""


def test_files_that_a_job_leaves_are_kept_and_no_others(shared_cluster: Cluster) -> None:
    job = shared_cluster.finished(shared_cluster.submit(LEAVES).id)
    url = f"/v1/jobs/{job.id}/files"
    files = shared_cluster.client.get(url).json()["files"]
    assert {file["name"] for file in files} == {"profile_1_2.json", "mine.json", "run_summary.json"}
    contents = {file["name"]: shared_cluster.client.get(f"{url}/{file['name']}").content for file in files}
    assert contents == {"profile_1_2.json": b"newer", "mine.json": b"second", "run_summary.json": b"how it went"}
    assert shared_cluster.client.get(f"{url}/link").status_code == 404
    events = shared_cluster.client.get(f"/v1/jobs/{job.id}/events").json()["events"]
    warnings = [event["message"] for event in events if event["kind"] == "warning"]
    assert [warning.split(" ")[5] for warning in warnings] == ["link", "'../outside'", "missing", "large.json"]
    assert "larger than 67108864 bytes" in warnings[3]


def test_every_byte_of_the_log_arrives_and_the_beginning_once(shared_cluster: Cluster) -> None:
    job = shared_cluster.finished(shared_cluster.submit(ODD_BYTES).id)
    expected = b"shown by the compile stage, not twice\n" + bytes(range(256)) * 20 + b"no newline at the end"
    assert shared_cluster.log_of(job.id) == expected
    part = shared_cluster.client.get(f"/v1/jobs/{job.id}/logs", params={"offset": 100, "limit_bytes": 57})
    assert part.content == expected[100:157]
    assert (part.headers["x-log-next-offset"], part.headers["x-log-final"]) == ("157", "false")
    rest = shared_cluster.client.get(f"/v1/jobs/{job.id}/logs", params={"offset": 157})
    assert (rest.content, rest.headers["x-log-final"]) == (expected[157:], "true")


def test_values_that_are_no_numbers_arrive_exactly(shared_cluster: Cluster) -> None:
    script = 'compile_model()\nmetric(1, a=float("nan"), b=float("inf"), c=float("-inf"), d=1e308, e=5e-324)'
    job = shared_cluster.finished(shared_cluster.submit(script).id)
    answer = shared_cluster.client.get(f"/v1/jobs/{job.id}/metrics")
    assert '"NaN"' in answer.text
    assert '"-Infinity"' in answer.text
    values = {point.name: point.value for point in MetricPage.model_validate_json(answer.content).points}
    assert math.isnan(values.pop("a"))
    assert values == {"b": math.inf, "c": -math.inf, "d": 1e308, "e": 5e-324}


def test_the_same_job_does_not_compile_again(shared_cluster: Cluster) -> None:
    script = TRAINING + "# twice"
    first = shared_cluster.finished(shared_cluster.submit(script).id)
    second = shared_cluster.submit(script, configuration={"runconfig": {"max_steps": 7}})
    assert [stage.status for stage in second.stages] == [StageStatus.SKIPPED, StageStatus.QUEUED]
    second = shared_cluster.finished(second.id)
    assert second.artifact_key == first.artifact_key
    assert shared_cluster.log_of(second.id).startswith(b"the beginning\n")
    other = shared_cluster.submit(script, configuration={"model": {"width": 8}})
    assert shared_cluster.finished(other.id).stages[0].status is StageStatus.SUCCEEDED


def test_two_submitted_at_once_compile_once(cluster: Cluster) -> None:
    jobs = [cluster.submit(TRAINING) for _ in range(2)]
    for name in ("compile-1", "compile-2"):
        cluster.start_worker("cerebras_compiler_worker", name)
    cluster.start_worker("cerebras_runner_worker", "run-worker")
    statuses = sorted(cluster.finished(job.id).stages[0].status for job in jobs)
    assert statuses == [StageStatus.SKIPPED, StageStatus.SUCCEEDED]


def test_a_script_that_raises_fails_its_job_with_its_last_line(shared_cluster: Cluster) -> None:
    script = 'print("before")\nif phase == "execute": raise ValueError("bad width")\ncompile_model()'
    job = shared_cluster.finished(shared_cluster.submit(script).id, status=JobStatus.FAILED)
    assert job.error is not None
    assert (job.error.code, job.error.message) == (ErrorCode.SCRIPT_RAISED, "ValueError: bad width")
    assert job.stages[1].attempts == 1
    log = shared_cluster.log_of(job.id)
    # Training never began, so the whole log of the execute stage is shown.
    assert log.startswith(b"before\nbefore\nTraceback")
    assert b"ValueError: bad width" in log


def test_a_process_that_is_killed_says_by_which_signal(shared_cluster: Cluster) -> None:
    script = 'import os\nprint("last words", flush=True)\nos.kill(os.getpid(), 9)'
    job = shared_cluster.finished(shared_cluster.submit(script).id, status=JobStatus.FAILED)
    assert job.error is not None
    assert job.error.code is ErrorCode.PROCESS_KILLED
    assert "SIGKILL" in job.error.message
    assert job.error.message.endswith("last words")
    assert job.stages[1].status is StageStatus.CANCELLED


def test_a_compile_that_leaves_half_an_artifact_fails(shared_cluster: Cluster) -> None:
    script = (
        'write_artifact()\n(directory.compile / "plan.json").write_bytes(b"other")\n'
        'directory.compile.joinpath("ln").symlink_to("/etc/passwd")'
    )
    job = shared_cluster.finished(shared_cluster.submit(script).id, status=JobStatus.FAILED)
    assert job.error is not None
    assert job.error.code is ErrorCode.COMPILER_BUG
    assert "plan.json" in job.error.message


def test_lines_that_are_no_events_are_left_out_with_one_warning(shared_cluster: Cluster) -> None:
    junk = 'directory.events.open("ab").write(b"nonsense\\n\\xff\\n" + b"x" * 3000000 + b"\\n")'
    job = shared_cluster.finished(shared_cluster.submit(f"compile_model()\n{junk}\nmetric(1, loss=2.0)").id)
    points = MetricPage.model_validate_json(shared_cluster.client.get(f"/v1/jobs/{job.id}/metrics").content).points
    assert [(point.name, point.value) for point in points] == [("loss", 2.0)]
    assert "warning" in shared_cluster.event_kinds(job.id)
