"""An attempt that is made again goes on from the newest checkpoint that the control plane has."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.workers.harness import Cluster, run_cluster, until

from cerebras_contract.errors import ErrorCode
from cerebras_contract.jobs import JobView
from cerebras_contract.states import JobStatus
from cerebras_contract.summaries import AttemptEnd, RunSummary

PATIENCE_SECONDS = 120.0  # real training imports torch and compiles
pytestmark = pytest.mark.integration

BEGINNING = """
import os, signal
compile_model()
attempt = int(root[-1])
found = sorted(path.name for path in directory.checkpoints.iterdir())
print("attempt", attempt, "begins with", *found, flush=True)
"""
SAVES_AND_HANGS = (
    BEGINNING
    + """
if attempt == 1:
    checkpoint(3)
    checkpoint(12)
    print("hanging", flush=True)
    wait_to_be_stopped()
"""
)
IS_KILLED = (
    BEGINNING
    + """
if attempt == 1:
    if {saves}:
        checkpoint(7)
    os.kill(os.getpid(), signal.SIGKILL)
"""
)
TRAINING = """
import sys, time, torch
from torch import nn
import cerebras_pytorch as cbt

torch.manual_seed(0)
with cbt.init_context() as context:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=0.05), nn.CrossEntropyLoss()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    data = torch.utils.data.TensorDataset(torch.randn(64, 1, 6, 6), torch.randint(0, 3, (64,)))
    loader = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(data, 8, shuffle=True))
    compiled_model = cbt.compile(model, optimizer, criterion, loader)
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(compiled_model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            cbt.log_metrics({"rate": optimizer.param_groups[0]["lr"]})
            time.sleep(float(sys.argv[1]))
print("trained to its end")
"""


def values(cluster: Cluster, job: JobView) -> dict[tuple[str, int], tuple[float, float]]:
    """Value and device seconds of each metric."""
    points = cluster.client.get(f"/v1/jobs/{job.id}/metrics", params={"limit": 1000}).json()["points"]
    return {(point["name"], point["step"]): (point["value"], point["device_seconds"]) for point in points}


def saved_steps(cluster: Cluster, job: JobView) -> list[int]:
    return [one["step"] for one in cluster.client.get(f"/v1/jobs/{job.id}/checkpoints").json()["checkpoints"]]


def test_the_next_worker_goes_on_from_the_newest_checkpoint(cluster: Cluster) -> None:
    _, worker = cluster.start_workers()
    job = cluster.submit(SAVES_AND_HANGS)
    until(lambda: b"hanging" in cluster.log_of(job.id), "the script to hang")
    assert saved_steps(cluster, job) == [3, 12]
    worker.stop(signal.SIGKILL)
    cluster.start_worker("cerebras_runner_worker", "run-worker")
    cluster.finished(job.id)
    assert b"attempt 1 begins with\n" in cluster.log_of(job.id)
    assert b"attempt 2 begins with step_12\n" in cluster.log_of(job.id)
    assert "execute.resumes" in cluster.event_kinds(job.id)

    another = cluster.submit(BEGINNING, from_checkpoint={"job": job.id, "step": 3})
    cluster.finished(another.id)
    assert b"attempt 1 begins with step_3\n" in cluster.log_of(another.id)
    missing = cluster.client.post(
        "/v1/jobs",
        json={"bundle": "0" * 64, "script": "train.py", "from_checkpoint": {"job": job.id, "step": 4}},
    )
    assert missing.status_code in (404, 422)


def test_a_killed_process_goes_on_where_it_had_saved_something(cluster: Cluster) -> None:
    cluster.start_workers()
    job = cluster.finished(cluster.submit(IS_KILLED.format(saves=True)).id)
    assert job.stages[1].attempts == 2
    assert cluster.log_of(job.id).endswith(b"attempt 2 begins with step_7\n")
    job = cluster.finished(cluster.submit(IS_KILLED.format(saves=False)).id, status=JobStatus.FAILED)
    assert job.error is not None
    assert job.error.code is ErrorCode.PROCESS_KILLED
    assert job.stages[1].attempts == 1


@pytest.fixture
def real_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One whose user's Python is a real one, with the framework."""
    with run_cluster(tmp_path, user_python=Path(sys.executable)) as running:
        yield running


def test_training_on_a_lost_worker_ends_as_if_nothing_had_happened(real_cluster: Cluster) -> None:
    cluster = real_cluster
    configuration = {"runconfig": {"checkpoint_steps": 3, "keep_checkpoints": 2}}
    _, worker = cluster.start_workers()
    job = cluster.submit(TRAINING, arguments=["0.2"], configuration=configuration)
    until(lambda: len(saved_steps(cluster, job)) == 2, "two checkpoints", PATIENCE_SECONDS)
    worker.stop(signal.SIGKILL)
    steps = saved_steps(cluster, job)
    assert max(steps) < 30
    cluster.start_worker("cerebras_runner_worker", "run-worker")
    undisturbed = cluster.submit(TRAINING, arguments=["0"], configuration=configuration)
    for one in (job, undisturbed):
        until(lambda one=one: cluster.job(one.id).finished_at is not None, "the end of training", PATIENCE_SECONDS)
    job, undisturbed = cluster.finished(job.id), cluster.finished(undisturbed.id)
    assert (job.stages[1].attempts, undisturbed.stages[1].attempts) == (2, 1)
    log = cluster.log_of(job.id).decode()
    assert f"Going on from checkpoints/step_{steps[-1]}: step {steps[-1]}, epoch" in log
    assert log.endswith("trained to its end\n")
    summary = RunSummary.model_validate_json(cluster.client.get(f"/v1/jobs/{job.id}/files/run_summary.json").content)
    killed, finished = summary.attempts
    assert (killed.start_step, killed.reason) == (0, AttemptEnd.KILLED)
    assert killed.end_step == finished.start_step == steps[-1]
    assert (finished.end_step, finished.reason) == (32, AttemptEnd.FINISHED)
    assert len([key for key in values(cluster, job) if key[0] == "loss"]) == 32
    assert values(cluster, job) == values(cluster, undisturbed)
    assert saved_steps(cluster, job) == saved_steps(cluster, undisturbed) == [30, 32]


def test_faults_are_sent_to_a_job_that_trains(real_cluster: Cluster) -> None:
    """The link becomes slow, then the system is lost: it ends with the losses of an undisturbed job."""
    cluster = real_cluster
    configuration = {"runconfig": {"checkpoint_steps": 4, "log_steps": 1}}
    cluster.start_workers()
    job = cluster.submit(TRAINING, arguments=["0.3"], configuration=configuration)
    url = f"/v1/jobs/{job.id}/faults"
    until(lambda: bool(saved_steps(cluster, job)), "a checkpoint", PATIENCE_SECONDS)
    slow = {"kind": "slow_link", "factor": 1000, "steps": 3}
    assert cluster.client.post(url, json=slow).status_code == 202
    until(lambda: b"1,000 times slower for 3 steps" in cluster.log_of(job.id), "the slow link", PATIENCE_SECONDS)
    assert cluster.client.post(url, json={"kind": "lose_system"}).status_code == 202
    until(lambda: cluster.job(job.id).stages[1].attempts == 2, "another attempt", PATIENCE_SECONDS)
    for wrong in ({"kind": "slow_link"}, {"kind": "lose_system", "mean_steps": 3}, {"kind": "fire"}):
        assert cluster.client.post(url, json=wrong).status_code == 422
    undisturbed = cluster.submit(TRAINING, arguments=["0"], configuration=configuration)
    for one in (job, undisturbed):
        until(lambda one=one: cluster.job(one.id).finished_at is not None, "the end of training", PATIENCE_SECONDS)
    job, undisturbed = cluster.finished(job.id), cluster.finished(undisturbed.id)
    losses = [
        {key: value for key, (value, _) in values(cluster, one).items() if key[0] == "loss"}
        for one in (job, undisturbed)
    ]
    assert losses[0] == losses[1]
    assert cluster.log_of(job.id).count(b"the system is lost") == 1
    assert cluster.client.post(url, json={"kind": "lose_system"}).status_code == 409


def test_a_job_whose_system_is_lost_goes_on_and_ends_as_an_undisturbed_one(real_cluster: Cluster) -> None:
    cluster = real_cluster
    runconfig = {"checkpoint_steps": 4}
    cluster.start_workers()
    undisturbed = cluster.submit(TRAINING, arguments=["0"], configuration={"runconfig": runconfig})
    faults = {"events": [{"kind": "lose_system", "step": 15}, {"kind": "lose_system", "step": 22}]}
    job = cluster.submit(TRAINING, arguments=["0"], configuration={"runconfig": runconfig, "faults": faults})
    for one in (undisturbed, job):
        until(lambda one=one: cluster.job(one.id).finished_at is not None, "the end of training", PATIENCE_SECONDS)
    undisturbed, job = cluster.finished(undisturbed.id), cluster.finished(job.id)
    assert job.stages[1].attempts == 3
    assert job.artifact_key == undisturbed.artifact_key
    assert values(cluster, job) == values(cluster, undisturbed)
    log = cluster.log_of(job.id).decode()
    assert "fault at step 15: the system is lost" in log
    assert "Going on from checkpoints/step_12: step 12" in log
    assert "Going on from checkpoints/step_20: step 20" in log
    summary = RunSummary.model_validate_json(cluster.client.get(f"/v1/jobs/{job.id}/files/run_summary.json").content)
    attempts = [(attempt.start_step, attempt.end_step, attempt.reason) for attempt in summary.attempts]
    assert attempts == [
        (0, 14, AttemptEnd.FAILED), (12, 21, AttemptEnd.FAILED), (20, 32, AttemptEnd.FINISHED)
    ]  # fmt: skip
