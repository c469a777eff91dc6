"""`plan`: what is refused before the planner starts, and what the planner is started with.

A stand-in takes the planner's place; the real one is tested in tests/integration/client.
"""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cerebras_cloud.cli import plan as plan_command

STAND_IN = """
import json, os, sys
with open(sys.argv[1], "w") as file:
    words = sys.argv[2:]
    config = json.load(open(words[words.index("--config") + 1]))
    json.dump({"words": words, "folder": os.getcwd(), "config": config}, file)
sys.exit(int(os.environ.get("STAND_IN_STATUS", "0")))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    (tmp_path / "run.yaml").write_text("runconfig:\n  max_steps: 5\nmodel:\n  width: 8\n")
    (tmp_path / "wse4.yaml").write_text("like: cs-3\n")
    return tmp_path


@pytest.fixture
def started(folder, monkeypatch):
    """What the planner was started with, once it was."""
    seen = folder / "seen.json"

    def start(words, cwd):
        assert words[:4] == [sys.executable, "-m", "cerebras_pytorch", "plan"]
        return subprocess.Popen([sys.executable, "-c", STAND_IN, str(seen), *words[4:]], cwd=cwd)

    monkeypatch.setattr(plan_command, "subprocess", SimpleNamespace(Popen=start))
    monkeypatch.chdir(folder)
    return lambda: json.loads(seen.read_text())


def test_the_planner_gets_the_options_the_configuration_and_the_scripts_folder(command, folder, started):
    words = ("--system", "cs-2, wse4.yaml", "--batch", "64,128", "--num-csx", "1,4", "--mode", "auto", "--json")
    words += ("--micro-batch", "explore", "--max-steps", "7", "--set", "model.depth=2", "--print-after", "match")
    assert command("plan", "code/train.py", "--config", "run.yaml", *words, "--", "--depth", "3") == 0
    seen = started()
    assert seen["folder"] == str(folder / "code")
    assert seen["config"] == {"runconfig": {"max_steps": 7}, "model": {"width": 8, "depth": 2}} | {
        name: {} for name in ("optimizer", "train_input", "eval_input")
    }
    scratch = seen["words"][seen["words"].index("--scratch") + 1]
    assert seen["words"][4:] == [
        "--system", f"cs-2,{folder}/wse4.yaml", "--batch", "64,128", "--num-csx", "1,4", "--mode", "auto",
        "--micro-batch", "explore", "--print-after", "match", "--json", "train.py", "--", "--depth", "3",
    ]  # fmt: skip
    assert not (folder / scratch).exists()


def test_the_planners_status_is_the_commands(command, started, monkeypatch):
    monkeypatch.setenv("STAND_IN_STATUS", "1")
    assert command("plan", "code/train.py") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch", "64,x"), "--batch: expected whole numbers above 0, as in 64,128, not '64,x'."),
        (("--batch", "0"), "--batch: expected whole numbers above 0"),
        (("--num-csx", ""), "--num-csx: expected whole numbers above 0"),
        (("--mode", "fast"), "--mode: expected one of auto, weight_streaming, pipelined, data_streaming, not 'fast'."),
        (("--micro-batch", "-1"), "--micro-batch: expected auto, explore or a whole number above 0, not '-1'."),
        (("--print-after", "precison"), "--print-after: expected one of precision, partition, match"),
        (("--system", "cs-2,cs-9"), "there is no system 'cs-9'"),
        (("--system", "none.yaml"), "cannot read the system none.yaml: No such file or directory"),
        (("--config", "none.yaml"), "cannot read the run configuration none.yaml"),
        (("--set", "runconfig.max_stepz=1"), "Did you mean 'max_steps'?"),
    ],
)
def test_wrong_usage_is_refused_before_the_planner_starts(command, capfd, folder, started, words, said):
    assert command("plan", "code/train.py", *words) == 2
    assert said in capfd.readouterr().err
    assert not (folder / "seen.json").exists()


def test_a_script_that_is_not_there_is_named(command, capfd, started):
    assert command("plan", "code/none.py") == 2
    assert "code/none.py does not exist" in capfd.readouterr().err


def test_without_the_framework_the_missing_package_is_named_in_one_line(command, capfd, started, monkeypatch):
    monkeypatch.setattr(plan_command, "find_spec", lambda _name: None)
    assert command("plan", "code/train.py") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "cerebras-emulator-pytorch" in line
