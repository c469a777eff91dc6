"""The main job: submit, compile once, train, and fetch what came of it."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from cerebras_contract.states import JobStatus, StageStatus

pytestmark = pytest.mark.e2e
SHORT = ("--max-steps", "30", "--set", "train_input.epochs=1")


def submitted(result):
    """The id of the job that a submit followed."""
    assert result.returncode == 0, result.stderr
    return next(line.split()[1] for line in result.stderr.splitlines() if line.startswith("submitted "))


def statuses(cluster, job_id):
    with cluster.client() as client:
        return {str(stage.kind): stage.status for stage in client.jobs.get(job_id).stages}


def test_a_model_is_trained_and_everything_it_left_can_be_fetched(cluster, mnist, tmp_path):
    result = cluster.run("submit", "train.py", "--config", "run.yaml", folder=mnist)
    job_id = submitted(result)
    assert statuses(cluster, job_id) == {"compile": StageStatus.SUCCEEDED, "execute": StageStatus.SUCCEEDED}

    # What the script prints in both phases is shown once, and in order.
    order = ["Cerebras context", "Compiling model...", "Memory estimate", "Compilation finished.", "Test accuracy:"]
    places = [result.stdout.index(text) for text in order]
    assert places == sorted(places)
    assert [result.stdout.count(text) for text in order] == [1] * len(order)
    assert cluster.run("logs", job_id).stdout == result.stdout

    with cluster.client() as client:
        points = list(client.jobs.metrics(job_id))
        losses = [point for point in points if point.name == "loss"]
        accuracy = [point.value for point in points if point.name == "test_accuracy"]
        assert [point.step for point in losses] == list(range(1, 361))
        assert losses[-1].value < losses[0].value / 5
        assert losses[-1].device_seconds == pytest.approx(360 * losses[0].device_seconds)
        assert accuracy[-1] >= 0.95
        assert [checkpoint.step for checkpoint in client.checkpoints.list(job_id)] == [100, 200, 300, 360]
        artifact = client.artifacts.download(job_id, tmp_path / "artifact")
    assert {"manifest.json", "plan.json", "report.txt", "forward.pt2", "backward.pt2", "update_0.pt2"} <= {
        path.name for path in artifact.iterdir()
    }

    profiled = cluster.run("profile", job_id, "--steps", "1:2", "--output", tmp_path / "trace.json")
    assert profiled.returncode == 0, profiled.stderr
    assert "the steps as they were" not in profiled.stderr  # of the plan: the job has left none
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["step"] for event in events if event["ph"] == "X"} == {1, 2}

    download = cluster.run("checkpoint", "download", job_id, "--to", tmp_path / "checkpoints")
    assert download.returncode == 0, download.stderr
    converted = tmp_path / "model.pt"
    convert = cluster.run("checkpoint", "convert", tmp_path / "checkpoints" / "step_360", converted)
    assert convert.returncode == 0, convert.stderr
    weights = torch.load(converted, weights_only=True)
    assert weights["conv1.weight"].shape == (32, 1, 3, 3)

    by_hand = subprocess.run([sys.executable, "train.py"], cwd=mnist, capture_output=True, text=True, check=True)
    accuracy_line = next(line for line in result.stdout.splitlines() if line.startswith("Test accuracy"))
    assert accuracy_line in by_hand.stdout.splitlines()  # the same numbers by hand and as a job


def test_a_job_leaves_a_profile_and_the_summary_of_its_attempts(cluster, mnist, tmp_path):
    settings = ("--max-steps", "6", "--set", "train_input.epochs=1", "--set", "runconfig.profile_steps=[3, 5]")
    job_id = submitted(cluster.run("submit", "train.py", "--config", "run.yaml", *settings, folder=mnist))
    listed = cluster.run("files", "list", job_id)
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["profile_3_5.json", "run_summary.json"]
    for steps in ((), ("--steps", "3:5")):
        profiled = cluster.run("profile", job_id, *steps, "--output", tmp_path / "trace.json")
        assert profiled.stderr.endswith("trace.json: profile_3_5.json, the steps as they were\n")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        assert {event["args"]["step"] for event in events if event["ph"] == "X"} == {3, 4, 5}
    by_plan = cluster.run("profile", job_id, "--plan", "--output", tmp_path / "plan.json")
    assert by_plan.returncode == 0, by_plan.stderr
    downloaded = cluster.run("files", "download", job_id, "--to", tmp_path / "files")
    assert downloaded.returncode == 0, downloaded.stderr
    summary = json.loads((tmp_path / "files" / "run_summary.json").read_text())
    assert [attempt["end_step"] for attempt in summary["attempts"]] == [6]


def test_the_same_job_again_does_not_compile(cluster, mnist):
    first = submitted(cluster.run("submit", "train.py", "--config", "run.yaml", *SHORT, folder=mnist))
    other_run = ("--max-steps", "20", "--set", "train_input.epochs=1", "--set", "optimizer.learning_rate=0.01")
    result = cluster.run("submit", "train.py", "--config", "run.yaml", *other_run, folder=mnist)
    second = submitted(result)
    assert statuses(cluster, second) == {"compile": StageStatus.SKIPPED, "execute": StageStatus.SUCCEEDED}
    assert result.stdout.count("Compiling model...") == 1
    with cluster.client() as client:
        assert client.jobs.get(first).artifact_key == client.jobs.get(second).artifact_key

    # Another batch size is another program.
    third = submitted(
        cluster.run(
            "submit", "train.py", "--config", "run.yaml", *SHORT, "--set", "train_input.batch_size=32", folder=mnist
        )
    )
    assert statuses(cluster, third)["compile"] == StageStatus.SUCCEEDED


def test_two_at_once_compile_once(cluster, mnist):
    arguments = ("submit", "train.py", "--config", "run.yaml", *SHORT, "--set", "model.width=8")
    both = [cluster.start(*arguments, folder=mnist, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in "ab"]
    errors = [process.communicate(timeout=300)[1] for process in both]
    ids = [next(line.split()[1] for line in text.splitlines() if line.startswith("submitted ")) for text in errors]
    compiled = sorted(str(statuses(cluster, job_id)["compile"]) for job_id in ids)
    assert compiled == ["skipped", "succeeded"]


def test_losing_the_terminal_does_not_hurt_the_job(cluster, mnist):
    follower = cluster.start(
        "submit", "train.py", "--config", "run.yaml", folder=mnist,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    job_id = next(line.split()[1] for line in follower.stderr if line.startswith("submitted "))
    for line in follower.stdout:
        if "Train Device=CSX" in line:
            break
    follower.send_signal(signal.SIGHUP)
    follower.communicate(timeout=30)
    result = cluster.run("follow", job_id)
    assert result.returncode == 0, result.stderr
    assert "Test accuracy:" in result.stdout
    with cluster.client() as client:
        assert client.jobs.get(job_id).status is JobStatus.SUCCEEDED


def test_logs_and_metrics_can_be_read_while_the_job_runs_and_it_can_be_cancelled(cluster, tmp_path, mnist):
    script = (mnist / "train.py").read_text()
    (mnist / "train.py").write_text(
        script.replace("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.2)")
    )
    job_id = cluster.run("submit", "train.py", "--config", "run.yaml", "--detach", folder=mnist).stdout.strip()
    with cluster.client() as client:
        deadline = time.monotonic() + 120
        while not list(client.jobs.metrics(job_id, "loss")):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert client.jobs.get(job_id).status is JobStatus.RUNNING
        assert b"Compilation finished." in b"".join(client.jobs.logs(job_id))
    assert cluster.run("jobs", "cancel", job_id).returncode == 0
    followed = cluster.run("follow", job_id)
    assert followed.returncode == 130
    listed = json.loads(cluster.run("jobs", "list", "-o", "json").stdout)
    assert next(job for job in listed if job["id"] == job_id)["status"] == "cancelled"
