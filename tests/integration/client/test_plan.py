"""`plan` over real processes: what is printed where, what is left behind, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cerebras_contract.planning import PlanRow

pytestmark = pytest.mark.integration
COMMAND = Path(sys.executable).with_name("cerebras-cloud")
SCRIPT = """
import os, sys
import torch
from torch import nn
import cerebras_pytorch as cbt
from layers import make

print("printed by the script", *sys.argv[1:])
os.system("echo printed by its child")
with cbt.init_context() as context:
    context.set_run_config(cbt.utils.config.RunConfig(max_steps=100))
    model = make(context.params["model"].get("width", 8))
    optimizer, criterion = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    data = [(torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,)))]
    {before}
    cbt.compile(model, optimizer, criterion, cbt.utils.data.DataLoader(data))
print("after compile")
"""
LAYERS = """
from torch import nn

class Unmappable(nn.Module):
    def forward(self, x):
        return x.nonzero()

def make(width):
    last = Unmappable() if width == 13 else nn.Linear(width, 3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, width), last)
"""


@dataclass(frozen=True)
class User:
    """Someone with a folder of code, and a folder for temporary files of their own."""

    code: Path
    temporary: Path

    def start(self, *words: str, **options: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "TMPDIR": str(self.temporary), "MARK": str(self.code.parent / "mark")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.Popen(
            [COMMAND, "plan", "code/train.py", *words],
            cwd=self.code.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )

    def plan(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        output, said = process.communicate(timeout=120)
        return process.returncode, output, said

    def left_behind(self) -> list[Path]:
        """Temporary files, but for a cache that torch makes when it is imported."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]

    def write(self, before: str = "") -> None:
        (self.code / "train.py").write_text(SCRIPT.replace("{before}", before))


@pytest.fixture
def user(tmp_path: Path) -> User:
    someone = User(tmp_path / "code", tmp_path / "temporary")
    someone.code.mkdir()
    someone.temporary.mkdir()
    someone.write()
    (someone.code / "layers.py").write_text(LAYERS)
    (tmp_path / "run.yaml").write_text("runconfig:\n  system: own.yaml\nmodel:\n  width: 16\n")
    (someone.code / "own.yaml").write_text("like: tiny\n")
    return someone


def test_json_is_all_there_is_on_standard_output_and_nothing_is_left_behind(user):
    before = {path: path.read_bytes() for path in user.code.iterdir()}
    words = ("--config", "run.yaml", "--batch", "8,16", "--num-csx", "1,3", "--json", "--print-after", "match")
    status, output, said = user.plan(*words, "--", "--depth", "3")
    assert status == 0, said
    rows = [PlanRow.model_validate(row) for row in json.loads(output)]
    assert [(row.system, row.num_csx, row.batch, row.fits) for row in rows] == [
        ("own", 1, 8, True), ("own", 1, 16, True), ("own", 3, 8, False), ("own", 3, 16, False),
    ]  # fmt: skip
    first = rows[0]
    assert first.system_hours == pytest.approx(100 * first.step_seconds / 3600)
    for words_of_others in ("printed by the script --depth 3", "printed by its child", "graph batch 8 compute"):
        assert words_of_others in said
    assert "after compile" not in said
    assert {path: path.read_bytes() for path in user.code.iterdir()} == before
    assert user.left_behind() == []


def test_the_table_and_what_a_pass_left_are_on_standard_output(user):
    status, output, said = user.plan("--system", "cs-2", "--print-after", "match")
    assert status == 0, said
    assert "kernel forward.1" in output
    header, row = next(
        (line, following)
        for line, following in zip(output.splitlines(), output.splitlines()[1:], strict=False)
        if line.startswith("SYSTEM")
    )
    assert header.split()[:3] == ["SYSTEM", "SYSTEMS", "BATCH"]
    assert row.split()[:3] == ["cs-2", "1", "8"]
    assert "printed by the script" not in output


def test_a_model_that_cannot_be_compiled_is_told_with_its_place_and_status_1(user):
    status, output, said = user.plan("--set", "model.width=13", "--json")
    assert (status, output) == (1, "")
    assert "layers.py:6: " in said
    assert "Traceback" not in said
    assert user.left_behind() == []


@pytest.mark.parametrize("whom", ["the command", "the terminal's group"])
def test_an_interrupted_plan_leaves_nothing_behind(user, whom):
    user.write("open(os.environ['MARK'], 'w').write(str(os.getpid())); import time; time.sleep(100)")
    process = user.start("--system", "cs-2", start_new_session=True)
    mark, deadline = user.code.parent / "mark", time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    planner = int(mark.read_text())
    if whom == "the command":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in said
    assert not psutil.pid_exists(planner)
    assert user.left_behind() == []
    assert {path.name for path in user.code.iterdir()} == {"train.py", "layers.py", "own.yaml"}
