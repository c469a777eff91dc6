"""A job on a system of the user's own: the file travels in the bundle, and both phases read it there."""

import json
import subprocess
import sys

import pytest

from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.plans import Plan
from cerebras_contract.run_directory import LAUNCH_MODULE, RunDirectory, StageResult

pytestmark = pytest.mark.integration
SCRIPT = """
import torch
from torch import nn
import cerebras_pytorch as cbt

with cbt.init_context() as context:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    loader = cbt.utils.data.DataLoader([(torch.randn(8, 4), torch.randint(0, 3, (8,)))])
    compiled_model = cbt.compile(model, optimizer, criterion, loader)
    for x, y in loader:
        optimizer.zero_grad()
        criterion(compiled_model(x), y).backward()
        optimizer.step()
"""


def run(directory: RunDirectory, phase: str) -> tuple[StageResult, str]:
    command = [sys.executable, "-m", LAUNCH_MODULE, "--phase", phase, "--run-dir", str(directory.root), "train.py"]
    done = subprocess.run(command, cwd=directory.code, capture_output=True, text=True, timeout=120, check=False)
    return StageResult.model_validate_json(directory.result.read_bytes()), done.stderr


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path)
    (made.code / "specs").mkdir(parents=True)
    made.logs.mkdir()
    (made.code / "train.py").write_text(SCRIPT)
    runconfig = {"target_device": "CSX", "system": "specs/wse4.yaml"}
    configuration = RunConfiguration.model_validate({"runconfig": runconfig})
    made.config.write_text(json.dumps(configuration.said()))
    return made


def test_it_is_compiled_and_trained_on(directory):
    (directory.code / "specs" / "wse4.yaml").write_text("like: cs-3\nfabric_rows: 2344\n")
    compiled, said = run(directory, "compile")
    assert (compiled.status, compiled.error) == ("succeeded", None), said
    plan = Plan.model_validate_json((directory.compile / "plan.json").read_bytes())
    assert (plan.system, plan.fabric_rows) == ("wse4", 2344)
    executed, said = run(directory, "execute")
    assert (executed.status, executed.last_step, executed.artifact_key) == ("succeeded", 1, compiled.artifact_key), said
