"""A script as a stage of a job: the user's process and its run directory, without any service."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.errors import ErrorCode
from cerebras_contract.events import RUN_EVENT
from cerebras_contract.run_directory import LAUNCH_MODULE, RunDirectory, StageResult
from cerebras_contract.states import StageKind

pytestmark = pytest.mark.integration
SCRIPT = """
import sys, time, torch
from torch import nn
import cerebras_pytorch as cbt

print("before compile")
with cbt.init_context() as context:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer, criterion = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    data = [(torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))) for _ in range(10)]
    loader = cbt.utils.data.DataLoader(data)
    compiled_model = cbt.compile(model, optimizer, criterion, loader)
    print("after compile")
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(compiled_model(x), y)
        loss.backward()
        optimizer.step()
        {in_loop}
print("the end", *sys.argv[1:])
"""


def lay_out(folder: Path, script: str, **runconfig: object) -> RunDirectory:
    directory = RunDirectory(folder)
    directory.code.mkdir(parents=True)
    directory.logs.mkdir()
    (directory.code / "train.py").write_text(script)
    configuration = RunConfiguration.model_validate({"runconfig": {"target_device": "CSX", **runconfig}})
    directory.config.write_text(json.dumps(configuration.said()))
    return directory


def command(directory: RunDirectory, stage: StageKind, *arguments: str) -> list[str]:
    phase = ["--phase", str(stage), "--run-dir", str(directory.root)]
    return [sys.executable, "-m", LAUNCH_MODULE, *phase, "train.py", *arguments]


def start(directory: RunDirectory, stage: StageKind, *arguments: str) -> subprocess.Popen:
    with directory.log_of(stage).open("ab") as log:
        return subprocess.Popen(command(directory, stage, *arguments), cwd=directory.code, stdout=log, stderr=log)


def run(directory: RunDirectory, stage: StageKind, *arguments: str) -> tuple[int, StageResult, str]:
    status = start(directory, stage, *arguments).wait(timeout=120)
    result = StageResult.model_validate_json(directory.result.read_bytes())
    return status, result, directory.log_of(stage).read_text()


def events(directory: RunDirectory) -> list:
    return [RUN_EVENT.validate_json(line) for line in directory.events.read_bytes().splitlines()]


def test_compile_ends_at_compile_and_execute_trains_from_the_artifact(tmp_path):
    directory = lay_out(tmp_path, SCRIPT.format(in_loop="pass"), checkpoint_steps=5)
    status, result, log = run(directory, StageKind.COMPILE)
    assert (status, result.status) == (0, "succeeded")
    assert "before compile" in log
    assert "after compile" not in log
    *warnings, compiled = events(directory)
    assert {event.kind for event in warnings} == {"warning"}
    assert compiled.kind == "artifact"
    assert result.artifact_key == compiled.artifact_key

    # The model's own forward is not needed any more: the artifact is what runs.
    script = directory.code / "train.py"
    refuses = "nn.Linear.forward = None\nprint('before compile')"
    script.write_text(script.read_text().replace('print("before compile")', refuses))
    status, executed, log = run(directory, StageKind.EXECUTE, "an", "argument")
    assert (status, executed.status, executed.last_step) == (0, "succeeded", 10)
    assert executed.artifact_key == result.artifact_key
    assert log.endswith("the end an argument\n")
    assert "Pass match" not in log
    assert sorted(path.name for path in directory.checkpoints.glob("step_*")) == ["step_10", "step_5"]
    starts = next(event for event in events(directory) if event.kind == "training_starts")
    log_bytes = directory.log_of(StageKind.EXECUTE).read_bytes()
    assert b"before compile" in log_bytes[: starts.log_offset_bytes]
    assert log_bytes[starts.log_offset_bytes :].startswith(b"after compile")


@pytest.mark.parametrize(
    ("script", "code", "message", "line"),
    [
        ("def f():\n    raise ValueError('no luck')\n\nf()\n", ErrorCode.SCRIPT_RAISED, "ValueError: no luck", 2),
        ("import sys\nsys.exit('enough')\n", ErrorCode.SCRIPT_EXITED, "the script called sys.exit('enough')", None),
        ("x = (\n", ErrorCode.SCRIPT_RAISED, "SyntaxError: '(' was never closed", 1),
        ("import no_such_module\n", ErrorCode.SCRIPT_RAISED, "ModuleNotFoundError: No module named 'no_such", 1),
        ("print('nothing to do')\n", ErrorCode.SCRIPT_NEVER_COMPILED, "the script ended without calling", None),
    ],
)  # fmt: skip
def test_a_script_that_fails_says_why_and_where(tmp_path, script, code, message, line):
    directory = lay_out(tmp_path, script)
    status, result, log = run(directory, StageKind.COMPILE)
    assert (status, result.status) == (1, "failed")
    assert result.error is not None
    assert result.error.code is code
    assert result.error.message.startswith(message)
    assert result.error.line == line
    assert result.error.file in ("train.py", None)
    assert "launch.py" not in log
    assert "runpy" not in log
    if code is ErrorCode.SCRIPT_RAISED:
        assert message in log


def test_the_end_of_phase_compile_is_not_swallowed_by_except_exception(tmp_path):
    script = textwrap.indent(SCRIPT.format(in_loop="pass"), "    ")
    directory = lay_out(tmp_path, f"try:\n{script}\nexcept Exception:\n    print('swallowed')\n")
    status, result, log = run(directory, StageKind.COMPILE)
    assert (status, result.status) == (0, "succeeded")
    assert "swallowed" not in log


def test_an_artifact_of_another_model_is_refused_with_what_differs(tmp_path):
    directory = lay_out(tmp_path, SCRIPT.format(in_loop="pass"))
    run(directory, StageKind.COMPILE)
    script = directory.code / "train.py"
    script.write_text(script.read_text().replace("36, 8", "36, 9").replace("Linear(8", "Linear(9"))
    status, result, _ = run(directory, StageKind.EXECUTE)
    assert status == 1
    assert result.error is not None
    assert result.error.code is ErrorCode.RUN_ARTIFACT_MISMATCH
    assert "1.weight: float32[8, 36], running 1.weight: float32[9, 36]" in result.error.message


def test_sigterm_finishes_the_step_saves_it_and_exits(tmp_path):
    directory = lay_out(tmp_path, SCRIPT.format(in_loop="print('step', flush=True); time.sleep(0.3)"))
    run(directory, StageKind.COMPILE)
    process = start(directory, StageKind.EXECUTE)
    log = directory.log_of(StageKind.EXECUTE)
    while log.read_text().count("step\n") < 2:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    result = StageResult.model_validate_json(directory.result.read_bytes())
    assert result.status == "stopped"
    assert 2 <= result.last_step < 10
    assert [path.name for path in directory.checkpoints.glob("step_*")] == [f"step_{result.last_step}"]
    assert events(directory)[-1].kind == "checkpoint"


def test_by_hand_a_refusal_is_its_report_and_an_error_of_the_script_its_traceback(tmp_path):
    def run_by_hand(script: str) -> tuple[int, str]:
        (tmp_path / "train.py").write_text(script)
        done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    refused = SCRIPT.format(in_loop="pass").replace("cbt.utils.data.DataLoader(data)", "data")
    status, errors = run_by_hand(refused)
    assert status == 1
    assert re.match(r"error: train\.py:\d+: train_loader is a list", errors)
    assert "Traceback" not in errors
    status, errors = run_by_hand(SCRIPT.format(in_loop="raise ValueError('mine')"))
    assert status == 1
    assert errors.startswith("Traceback")
    assert errors.rstrip().endswith("ValueError: mine")


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux only")
def test_a_process_of_low_priority_saves_too():
    """Without the right to raise a priority, as in the sandbox, a thread's may only fall."""
    script = (
        "import os, resource\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from cerebras_pytorch.checkpoints.saver import _give_way\n"
        "resource.setrlimit(resource.RLIMIT_NICE, (0, 0))\n"
        "os.nice(15)\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "print(ThreadPoolExecutor(1, initializer=_give_way).submit(lambda: 'ran').result())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "ran\n", done.stderr
