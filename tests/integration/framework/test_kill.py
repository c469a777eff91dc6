"""SIGKILL at any instant: what was complete stays complete, and a run goes on from the newest.

`make soak` kills ten times as often.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.resuming import STEPS

from cerebras_pytorch.checkpoints.folder import clear_leftovers, newest_checkpoint
from cerebras_pytorch.checkpoints.read import check_digests, read_checkpoint

pytestmark = pytest.mark.integration
KILLS = int(os.environ.get("CHECKPOINT_KILLS", "20"))
TRAINING_KILLS = max(5, KILLS // 10)
VICTIM = Path(__file__).with_name("victim.py")
LONGEST_LIFE_SECONDS = 0.12  # some ten saves


@dataclass
class Victims:
    """Starts processes, and hears what they say."""

    popen: "subprocess.Popen[str]"
    said: list[str] = field(default_factory=list)

    def start(self, task: str, *arguments: Any) -> int:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps([task, *arguments]) + "\n")
        self.popen.stdin.flush()
        self.said = []
        return int(self.line_with("pid ").split()[1])

    def ended(self) -> list[str]:
        """What the process said, once it is no more."""
        self.line_with("ended")
        return self.said

    def line_with(self, start: str) -> str:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(start):
                return line
            if line.startswith(("saved", "complete")):
                self.said.append(line.strip())
        raise AssertionError(f"the victims' process ended, after {self.said}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("victims")


@pytest.fixture(scope="module")
def victims(place: Path) -> Iterator[Victims]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    popen = subprocess.Popen([sys.executable, str(VICTIM), str(place)], env=environment, **pipes)  # type: ignore[call-overload]
    with popen:
        victims = Victims(popen)
        victims.line_with("ready")
        yield victims
        popen.stdin.close()


def whole_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, every byte of which is of that step."""
    warnings: list[str] = []
    newest = newest_checkpoint(folder, warnings.append)
    assert warnings == []
    if newest is None:
        return None
    tensors = [*newest.model.values(), *(newest.optimizer or {}).values(), *newest.training_tensors.values()]
    assert {value for tensor in tensors for value in tensor.unique().tolist()} == {float(newest.step)}
    assert newest.extra == newest.training == {"step": newest.step}
    assert all(check_digests(newest.folder, newest.manifest).values())
    return newest.step


def test_killed_at_random_instants_the_newest_is_complete(victims: Victims, tmp_path: Path) -> None:
    rng = random.Random(0)
    step, interrupted = 0, 0
    for _ in range(KILLS):
        pid = victims.start("save_for_ever", str(tmp_path), step + 1)
        time.sleep(rng.uniform(0, LONGEST_LIFE_SECONDS))
        os.kill(pid, signal.SIGKILL)
        said = [int(line.split()[1]) for line in victims.ended()]
        interrupted += any(path.name.startswith(".step_") for path in tmp_path.iterdir())
        clear_leftovers(tmp_path)
        found = whole_step(tmp_path) or 0
        assert found >= max([step, *said])
        for folder in tmp_path.iterdir():
            assert read_checkpoint(folder).step == int(folder.name.removeprefix("step_"))
        step = found
    assert step > 0
    assert interrupted > 0


@pytest.mark.parametrize("replaced", [False, True], ids=["beside an older one", "in the place of one"])
def test_killed_at_each_call_to_the_system_one_is_complete(victims: Victims, tmp_path: Path, replaced: bool) -> None:
    old, new = (5, 5) if replaced else (5, 6)
    template = tmp_path / "template"
    victims.start("save_until_call", str(template), old, 0)
    assert victims.ended() == ["complete"]
    steps = []
    for call in range(1, 1000):
        folder = Path(shutil.copytree(template, tmp_path / str(call)))
        before = read_checkpoint(folder / f"step_{old}").manifest.created_at
        victims.start("save_until_call", str(folder), new, call)
        said = victims.ended()
        clear_leftovers(folder)
        step = whole_step(folder)
        assert step is not None
        created_at = read_checkpoint(folder / f"step_{step}").manifest.created_at
        steps.append(created_at > before)
        assert not any(path.name.startswith(".") for path in folder.iterdir())
        if said:
            break
    assert said == ["complete"]
    assert call > 30
    # The old one up to some call, from there on the new one.
    assert steps == sorted(steps)
    assert {False, True} == set(steps)


def test_training_that_is_killed_again_and_again_is_training_in_one_go(
    victims: Victims, place: Path, tmp_path: Path
) -> None:
    in_one_go, report = tmp_path / "in_one_go", tmp_path / "report"
    for name in ("whole", "killed"):
        shutil.copytree(place / "compile", tmp_path / name / "compile")
    victims.start("train", str(tmp_path / "whole"), str(in_one_go))
    assert victims.ended() == ["complete"]
    rng = random.Random(1)
    kills = 0
    while True:
        report.touch()
        known = len(report.read_text().splitlines())
        pid = victims.start("train", str(tmp_path / "killed"), str(report))
        enough = known + rng.randint(1, 4)
        give_up_at = time.monotonic() + 60
        while len(report.read_text().splitlines()) < min(enough, STEPS) and kills < TRAINING_KILLS:
            assert time.monotonic() < give_up_at
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        if kills < TRAINING_KILLS:
            os.kill(pid, signal.SIGKILL)
            kills += 1
        if victims.ended() == ["complete"]:
            break
    lines = report.read_text().splitlines()
    # Steps after the newest checkpoint were trained twice, and gave the same.
    assert list(dict.fromkeys(lines)) == in_one_go.read_text().splitlines()
    assert len({line.split()[0] for line in lines}) == len(set(lines)) == STEPS
    assert kills >= 3
