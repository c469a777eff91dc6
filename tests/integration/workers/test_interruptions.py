"""Workers and queues that die, stop or fall silent; jobs that are cancelled."""

import signal
from pathlib import Path

import psutil
import pytest
from tests.integration.workers.harness import (
    PATIENCE_SECONDS,
    TRAINING,
    Cluster,
    Process,
    run_cluster,
    until,
)

from cerebras_contract.states import JobStatus, StageStatus

pytestmark = pytest.mark.integration

# The first attempt waits to be stopped, a later one goes through.
HANGS_ONCE = """
import subprocess, sys
compile_model()
print("attempt", root[-1], flush=True)
if root.endswith("-1"):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("hanging", flush=True)
    wait_to_be_stopped()
else:
    metric(1, loss=0.5)
"""
IGNORES_SIGTERM = """
import signal
compile_model()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("hanging", flush=True)
wait_to_be_stopped()
"""


def wait_until_it_hangs(cluster: Cluster, job_id: str) -> None:
    def hangs() -> bool:
        assert cluster.job(job_id).error is None
        return b"hanging" in cluster.log_of(job_id)

    until(hangs, "the script to hang")


def user_processes(worker: Process) -> list[psutil.Process]:
    found = psutil.Process(worker.popen.pid).children(recursive=True)
    assert found
    return found


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)
    return not alive


@pytest.mark.parametrize("successor", ["run-worker", "another"])
def test_the_stage_of_a_killed_worker_is_done_by_its_successor(cluster: Cluster, successor: str) -> None:
    _, worker = cluster.start_workers()
    job = cluster.submit(HANGS_ONCE)
    wait_until_it_hangs(cluster, job.id)
    orphans = user_processes(worker)
    worker.stop(signal.SIGKILL)
    assert all_gone(orphans)
    cluster.start_worker("cerebras_runner_worker", successor)
    job = cluster.finished(job.id)
    assert (job.stages[0].attempts, job.stages[1].attempts) == (1, 2)
    assert cluster.log_of(job.id).endswith(b"attempt 2\n")


def test_a_worker_that_was_cut_off_writes_nothing_more(cluster: Cluster) -> None:
    _, worker = cluster.start_workers()
    job = cluster.submit(HANGS_ONCE)
    wait_until_it_hangs(cluster, job.id)
    users = user_processes(worker)
    worker.popen.send_signal(signal.SIGSTOP)
    cluster.start_worker("cerebras_runner_worker", "run-worker-2")
    job = cluster.finished(job.id)
    log = cluster.log_of(job.id)
    worker.popen.send_signal(signal.SIGCONT)
    assert all_gone(users)
    assert cluster.log_of(job.id) == log
    assert cluster.job(job.id) == job
    until(lambda: b"stage lost" in worker.log.read_bytes(), "the worker to notice")


def test_a_worker_told_to_stop_gives_its_stage_back(cluster: Cluster) -> None:
    _, worker = cluster.start_workers()
    job = cluster.submit(HANGS_ONCE)
    wait_until_it_hangs(cluster, job.id)
    users = user_processes(worker)
    assert worker.stop() == 0
    assert all_gone(users)
    given_back = cluster.job(job.id).stages[1]
    assert (given_back.status, given_back.attempts) == (StageStatus.QUEUED, 1)
    cluster.start_worker("cerebras_runner_worker", "run-worker")
    assert cluster.finished(job.id).stages[1].attempts == 2


def test_a_running_job_is_cancelled(cluster: Cluster) -> None:
    _, worker = cluster.start_workers()
    job = cluster.submit(HANGS_ONCE)
    wait_until_it_hangs(cluster, job.id)
    users = user_processes(worker)
    assert cluster.client.post(f"/v1/jobs/{job.id}/cancel").json()["status"] == "cancelling"
    job = cluster.finished(job.id, status=JobStatus.CANCELLED)
    assert job.stages[1].status is StageStatus.CANCELLED
    assert all_gone(users)
    # The worker is free again.
    cluster.finished(cluster.submit(TRAINING).id)


def test_a_script_that_ignores_sigterm_is_killed(cluster: Cluster) -> None:
    _, worker = cluster.start_workers()
    job = cluster.submit(IGNORES_SIGTERM)
    wait_until_it_hangs(cluster, job.id)
    users = user_processes(worker)
    cluster.client.post(f"/v1/jobs/{job.id}/cancel")
    cluster.finished(job.id, status=JobStatus.CANCELLED)
    assert all_gone(users)


def test_a_waiting_job_is_cancelled_at_once(cluster: Cluster) -> None:
    job = cluster.submit(TRAINING)
    cancelled = cluster.client.post(f"/v1/jobs/{job.id}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert [stage["status"] for stage in cancelled["stages"]] == ["cancelled", "cancelled"]
    assert cluster.client.post(f"/v1/jobs/{job.id}/cancel").json() == cancelled


def test_without_redis_jobs_run_and_workers_stop(cluster: Cluster) -> None:
    workers = cluster.start_workers()
    cluster.valkey.stop(signal.SIGKILL)
    job = cluster.submit(TRAINING)
    cluster.finished(job.id)
    assert cluster.client.get("/v1/health").json()["status"] == "degraded"
    assert [worker.stop() for worker in workers] == [0, 0]
    late_starter = cluster.start_worker("cerebras_compiler_worker", "late")
    until(lambda: "late" in cluster.living_workers(), "a worker started without Redis")
    assert late_starter.stop() == 0
    assert all(b"canary" not in worker.log.read_bytes() for worker in cluster.processes)


def test_after_redis_came_back_workers_hear_it_again(tmp_path: Path) -> None:
    with run_cluster(tmp_path, poll_seconds=3600.0) as cluster:
        cluster.start_workers()
        cluster.finished(cluster.submit(TRAINING).id)
        cluster.valkey.stop(signal.SIGKILL)
        job = cluster.submit(TRAINING + "# without a bell")
        cluster.restart_valkey()
        cluster.finished(job.id)
