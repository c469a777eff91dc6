"""`cerebras-cloud checkpoint inspect` and `convert` as a person calls them: torch is another process's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.integration
COMMAND = Path(sys.executable).with_name("cerebras-cloud")


def checkpoint(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [COMMAND, "checkpoint", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_state_dict_becomes_a_checkpoint_that_can_be_inspected(tmp_path: Path) -> None:
    plain, folder = tmp_path / "model.pt", tmp_path / "started"
    torch.save(torch.nn.Linear(3, 2).state_dict(), plain)
    converted = checkpoint("convert", plain, folder)
    assert (converted.returncode, converted.stderr) == (0, "")
    assert converted.stdout == f"Wrote 2 tensors to {folder}\n"
    shown = checkpoint("inspect", folder, "--json")
    assert {row["name"]: row["shape"] for row in json.loads(shown.stdout)["tensors"]} == {"bias": [2], "weight": [2, 3]}
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    damaged = checkpoint("inspect", folder)
    assert damaged.returncode == 1
    assert "model.safetensors: truncated" in damaged.stderr
    assert "Traceback" not in damaged.stderr
