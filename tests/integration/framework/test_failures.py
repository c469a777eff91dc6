"""Runs that go wrong by real limits: memory, a disk, a lock that is never let go, SIGTERM and SIGKILL."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.framework.test_launch import events, lay_out, run

from cerebras_contract.errors import ErrorCode
from cerebras_contract.run_directory import RunDirectory, StageResult
from cerebras_contract.states import StageKind
from cerebras_contract.summaries import RunSummary
from cerebras_pytorch.checkpoints import read_checkpoint

pytestmark = pytest.mark.integration

SCRIPT = """
import itertools, pathlib, resource, sys, threading, time, types, torch
from torch import nn
import cerebras_pytorch as cbt
from cerebras_pytorch.training import watch

# Hours pass between two looks where this script gets stuck: no test waits for a limit, or depends on this machine.
stuck, looks = pathlib.Path("stuck"), itertools.count()
watch.time = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 10_000 * stuck.exists() * next(looks))
watch.LOOK_SECONDS, watch.LONGEST_GAP_SECONDS = 0.05, float("inf")

with cbt.init_context({config}) as context:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 3))
    optimizer, criterion = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    data = [(torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))) for _ in range(10)]
    loader = cbt.utils.data.DataLoader(data)
    compiled_model = cbt.compile(model, optimizer, criterion, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(compiled_model(x), y)
        loss.backward()
        optimizer.step()
        {in_loop}
"""
PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all these scripts compile to."""
    directory = lay_out(tmp_path_factory.mktemp("template"), SCRIPT.format(config="", in_loop="pass"))
    assert run(directory, StageKind.COMPILE)[0] == 0
    return directory.compile


def execute(folder: Path, artifact: Path, in_loop: str, **runconfig: object) -> tuple[RunDirectory, StageResult, str]:
    directory = lay_out(folder, SCRIPT.format(config="", in_loop=in_loop), **runconfig)
    shutil.copytree(artifact, directory.compile)
    status, result, log = run(directory, StageKind.EXECUTE)
    assert (status, result.status) == (1, "failed")
    assert result.error is not None
    assert "Traceback" not in log
    (attempt,) = RunSummary.model_validate_json(directory.summary.read_bytes()).attempts
    assert (attempt.reason, attempt.error, attempt.end_step) == ("failed", result.error.code, result.last_step)
    return directory, result, log


def line_of(directory: RunDirectory, text: str) -> int:
    lines = (directory.code / "train.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def test_what_the_system_refuses_of_memory_is_told_with_its_line(tmp_path, artifact):
    limit = "used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * 4096"
    limit += "; resource.setrlimit(resource.RLIMIT_AS, (used + 2**28,) * 2)"
    in_loop = f"{limit}\n        kept = torch.ones(2**30)"
    directory, result, log = execute(tmp_path, artifact, in_loop)
    assert result.error.code is ErrorCode.RUN_OUT_OF_MEMORY
    assert (result.error.file, result.error.line) == ("train.py", line_of(directory, "kept ="))
    assert "more memory than there is" in result.error.message
    for remedy in ("more memory", "swap", "batch", "model smaller"):
        assert remedy in result.error.advice
    assert str(result.error) in log


def test_a_run_without_progress_ends_with_the_stack_of_every_thread(tmp_path, artifact):
    in_loop = "threading.Thread(target=time.sleep, args=(600,), name='another', daemon=True).start()"
    in_loop += "\n        stuck.touch(); lock = threading.Lock(); lock.acquire()"
    in_loop += "\n        lock.acquire()  # for ever"
    directory, result, log = execute(tmp_path, artifact, in_loop, deadlock_timeout_seconds=1000)
    assert result.error.code is ErrorCode.RUN_DEADLOCK
    assert "no progress for 1000 s (deadlock_timeout_seconds), after step 0" in result.error.message
    assert (result.error.file, result.error.line) == ("train.py", line_of(directory, "# for ever"))
    for thread in ("Thread MainThread:", "Thread another:"):
        assert thread in log
    assert f'train.py", line {line_of(directory, "# for ever")}' in log


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_told_and_nothing_that_was_saved_is_lost(tmp_path, artifact):
    artifact_bytes = sum(-(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES for path in artifact.rglob("*"))
    with small_disk(tmp_path / "disk", artifact_bytes + 300_000) as disk:
        # A file of the script's takes what is left, but for a checkpoint or two.
        fill = "import os; free = os.statvfs('.'); free = free.f_bavail * free.f_frsize"
        in_loop = f"{fill}\n        context.session.step == 3 and pathlib.Path('own').write_bytes(bytes(free - 50_000))"
        directory, result, log = execute(disk / "run", artifact, in_loop, checkpoint_steps=1)
        assert result.error.code is ErrorCode.RUN_DISK_FULL
        assert "No space left on device" in result.error.message
        assert "Make room" in result.error.advice
        saved = sorted(int(path.name.removeprefix("step_")) for path in directory.checkpoints.glob("step_*"))
        assert saved[:3] == [1, 2, 3]
        assert len(saved) < 10
        for step in saved:
            assert read_checkpoint(directory.checkpoint(step)).step == step
        assert {event.step for event in events(directory) if event.kind == "checkpoint"} >= {1, 2, 3}
        assert str(result.error) in log


def test_a_full_disk_that_takes_no_event_is_told(tmp_path, artifact):
    artifact_bytes = sum(-(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES for path in artifact.rglob("*"))
    with small_disk(tmp_path / "disk", artifact_bytes + 200_000) as disk:
        fill = "import os; free = os.statvfs('.'); free = free.f_bavail * free.f_frsize"
        own = "pathlib.Path('own').write_bytes(bytes(free))"
        in_loop = f"{fill}; {own}\n        [cbt.log_metrics({{'a name that is long ' * 300: 1.0}}) for _ in range(9)]"
        directory, result, _ = execute(disk / "run", artifact, in_loop)
        assert result.error.code is ErrorCode.RUN_DISK_FULL
        assert "No space left on device" in result.error.message
        assert [event.sequence for event in events(directory)] == list(range(1, len(events(directory)) + 1))


def by_hand(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "train.py"]
    return subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go_to(process: subprocess.Popen, step: int) -> None:
    """Let the script end its steps up to this one; it stands in the one behind it then."""
    for line in process.stdout:
        if line.startswith("in step"):
            if int(line.split()[-1]) > step:
                return
            process.stdin.write("\n")
            process.stdin.flush()
    raise AssertionError("the script ended early")


def test_by_hand_sigterm_saves_the_last_step_and_each_attempt_is_in_the_summary(tmp_path):
    in_loop = "print('in step', context.session.step + 1, flush=True); sys.stdin.readline()"
    (tmp_path / "train.py").write_text(SCRIPT.format(config="'run.yaml'", in_loop=in_loop))
    (tmp_path / "run.yaml").write_text("runconfig: {autoload_last_checkpoint: true, log_steps: 1}\n")

    stopped = by_hand(tmp_path)
    go_to(stopped, 2)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate("\n", timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert [path.name for path in (tmp_path / "checkpoints").glob("step_*")] == ["step_3"]
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "stopped"

    killed = by_hand(tmp_path)
    go_to(killed, 5)
    killed.kill()
    killed.communicate(timeout=60)

    last = by_hand(tmp_path)
    last.communicate("\n" * 10, timeout=60)
    assert last.returncode == 0
    attempts = RunSummary.model_validate_json((tmp_path / "run_summary.json").read_bytes()).attempts
    spans = [(one.number, one.start_step, one.end_step, one.reason) for one in attempts]
    assert spans == [(1, 0, 3, "stopped"), (2, 3, 5, "killed"), (3, 3, 10, "finished")]
    assert [one.ended_at is None for one in attempts] == [False, True, False]


def test_by_hand_a_system_is_lost_once_and_the_run_goes_on(tmp_path):
    print_losses = "print('loss', context.session.step + 1, loss.item().hex())"
    (tmp_path / "train.py").write_text(SCRIPT.format(config="'run.yaml'", in_loop=print_losses))
    runconfig = "runconfig: {autoload_last_checkpoint: true, checkpoint_steps: 2, log_steps: 1}\n"

    def finish(configuration: str) -> tuple[int, str, list[str]]:
        (tmp_path / "run.yaml").write_text(runconfig + configuration)
        printed = by_hand(tmp_path).communicate(timeout=60)[0]
        losses = [line for line in printed.splitlines() if line.startswith("loss")]
        return json.loads((tmp_path / "result.json").read_text()), printed, losses

    faults = "faults: {events: [{kind: lose_system, step: 4}, {kind: lose_system, step: 7}]}\n"
    result, printed, before = finish(faults)
    assert (result["status"], result["error"]["code"]) == ("failed", "run.system_lost")
    assert "fault at step 4: the system is lost" in printed
    assert len(before) == 4
    result, _, second = finish(faults)
    assert result["last_step"] == 6
    result, _, third = finish(faults)
    assert result["status"] == "succeeded"
    attempts = RunSummary.model_validate_json((tmp_path / "run_summary.json").read_bytes()).attempts
    assert [(one.start_step, one.end_step, one.error) for one in attempts] == [
        (0, 3, "run.system_lost"),
        (2, 6, "run.system_lost"),
        (6, 10, None),
    ]
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "run_summary.json").unlink()
    _, _, undisturbed = finish("")
    assert [*before[:2], *second[:4], *third] == undisturbed
