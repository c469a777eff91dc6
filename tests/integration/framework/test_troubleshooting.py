"""The rows of docs/troubleshooting.md, each provoked in a process that runs a script as a stage of a job."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.framework.test_launch import lay_out, start

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_contract.run_directory import RunDirectory, StageResult
from cerebras_contract.states import StageKind

pytestmark = pytest.mark.integration

SCRIPT = """
import pathlib, time, types
import torch
from torch import nn
import cerebras_pytorch as cbt
from cerebras_pytorch import limits
from cerebras_pytorch.data import first_batch

# Time passes at once where this script gets stuck: no test waits for a limit, or depends on how fast this machine is.
stuck = pathlib.Path("stuck")
clock = types.SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + 10_000 * stuck.exists())
limits.time = first_batch.time = clock
{before}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        {in_init}

    def forward(self, x):
        {in_forward}
        return self.layer(x)

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        {in_dataset}
        return torch.ones(4), torch.ones(4)

with cbt.init_context():
    model = Model()
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8, num_workers=1)
    cbt.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), cbt.utils.data.DataLoader(loader))
"""


def script(**parts: str) -> str:
    places = ("before", "in_init", "in_forward", "in_dataset")
    return SCRIPT.format(**{place: parts.get(place, "pass") for place in places})


GROWS = script(in_init="self.kept = []\n        while True:\n            self.kept.append(b'x' * 2**20)")
ENDLESS = script(in_forward="stuck.touch()\n        while True: time.sleep(0.01)")
BLOCKED = script(in_dataset="stuck.touch(); time.sleep(600)")
NEVER_HEEDS = script(
    before="import signal; limits.GRACE_SECONDS = 0.1",
    in_forward="signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}); stuck.touch(); time.sleep(600)",
)


def wait(directory: RunDirectory, process: subprocess.Popen) -> ErrorReport:
    """The error of a stage that fails, which its result and its log both tell."""
    assert process.wait(timeout=120) == 1
    result = StageResult.model_validate_json(directory.result.read_bytes())
    assert result.status == "failed"
    assert result.error is not None
    log = directory.log_of(StageKind.COMPILE).read_text()
    assert str(result.error) in log or result.error.message in log
    assert "launch.py" not in log
    return result.error


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


def failed(folder: Path, text: str, **runconfig: object) -> ErrorReport:
    directory = lay_out(folder, text, **runconfig)
    return wait(directory, start(directory, StageKind.COMPILE))


def test_an_endless_compile_is_ended_with_the_line_it_stood_at(tmp_path):
    error = failed(tmp_path, ENDLESS, compile_timeout_seconds=600)
    assert error.code is ErrorCode.COMPILE_TIMEOUT
    assert (error.file, error.line) == ("train.py", line_of(ENDLESS, "while True"))
    assert "in forward" in error.message


def test_a_compile_out_of_memory_is_ended_before_the_machine_is(tmp_path):
    error = failed(tmp_path, GROWS, compile_crd_memory_gi=1)
    assert error.code is ErrorCode.COMPILE_OUT_OF_MEMORY
    assert error.file == "train.py"
    assert error.line in (line_of(GROWS, "while True"), line_of(GROWS, "self.kept.append"))
    assert "1.00 GiB (compile_crd_memory_gi)" in error.message
    for remedy in ("more memory", "swap", "batch", "model smaller"):
        assert remedy in (error.advice or "")


def test_a_module_that_is_not_found_is_named_with_the_interpreter(tmp_path):
    error = failed(tmp_path, script(before="import cerebras_modelzoo"))
    assert error.code is ErrorCode.SCRIPT_RAISED
    assert error.message == "ModuleNotFoundError: No module named 'cerebras_modelzoo'"
    assert error.line == line_of(SCRIPT, "{before}")
    assert sys.executable in (error.advice or "")


def test_a_loader_stuck_in_compile_is_named_with_the_call_of_its_worker(tmp_path):
    error = failed(tmp_path, BLOCKED, input_timeout_seconds=600, compile_timeout_seconds=10**9)
    assert error.code is ErrorCode.COMPILE_INPUT_BLOCKED
    assert (error.file, error.line) == ("train.py", line_of(BLOCKED, "time.sleep(600)"))
    assert "in __getitem__" in error.message
    assert "worker 0" in error.message


def test_what_heeds_no_signal_is_ended_with_its_process_and_leaves_its_result(tmp_path):
    error = failed(tmp_path, NEVER_HEEDS, compile_timeout_seconds=600)
    assert error.code is ErrorCode.COMPILE_TIMEOUT
    assert error.line == line_of(NEVER_HEEDS, "pthread_sigmask")


def test_a_failure_by_hand_leaves_its_result_too(tmp_path):
    text = script(in_forward="if x.sum() > 0: x = -x")
    (tmp_path / "train.py").write_text(text)
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    result = StageResult.model_validate_json((tmp_path / "result.json").read_bytes())
    assert result.error is not None
    assert result.error.code is ErrorCode.COMPILE_DATA_DEPENDENT
    assert (result.error.file, result.error.line) == ("train.py", line_of(text, "if x.sum()"))
    assert ended.stderr.strip() == f"error: {result.error}"


def test_a_slow_run_is_explained_by_the_bound_of_its_report(tmp_path):
    directory = lay_out(tmp_path, script(), execution_mode="weight_streaming")
    assert start(directory, StageKind.COMPILE).wait(timeout=120) == 0
    report = json.loads((directory.compile / "report.json").read_bytes())
    assert report["bound"] == "overhead"
    codes = [warning["code"] for warning in report["warnings"]]
    assert codes == ["dimension_not_aligned", "dimension_not_aligned", "float32_multiply_adds", "batch_too_small"]
    assert [line for line in directory.log_of(StageKind.COMPILE).read_text().splitlines() if "batch_too_small" in line]
    events = [json.loads(line) for line in directory.events.read_bytes().splitlines()]
    assert len([event for event in events if event["kind"] == "warning"]) == len(codes)
