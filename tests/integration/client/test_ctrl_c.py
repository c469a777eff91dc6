"""Ctrl-C while following, in a real process: the job goes on, and the printed commands reach it again."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.client.stand_in import API_KEY, JOB_ID, StandIn, job_view, serve, story

from cerebras_contract.cluster import Connection
from cerebras_contract.states import JobStatus

pytestmark = pytest.mark.integration
COMMAND = Path(sys.executable).with_name("cerebras-cloud")
LOG = b"epoch 1\nloss 0.5\nhalf a line"
WHOLE = story(LOG, job_view(JobStatus.SUCCEEDED))


@dataclass(frozen=True)
class User:
    """Someone with a home whose API is the stand-in, and a script."""

    folder: Path
    environment: dict[str, str]
    api: StandIn

    @property
    def home(self) -> Path:
        return self.folder / "a home"

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [COMMAND, *words], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    api = StandIn(events=WHOLE[:-1], holds=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CEREBRAS_")}
    with serve(api) as url:
        someone = User(tmp_path, {**kept, "HOME": str(tmp_path)}, api)
        someone.home.mkdir()
        (someone.home / "api_key").write_text(API_KEY)
        (someone.home / "connection.json").write_text(Connection(url=url).model_dump_json())
        (tmp_path / "train.py").write_text("print()")
        (tmp_path / ".cerebrasignore").write_text("/a home/\n")
        yield someone


def commands_in(said: str) -> dict[str, list[str]]:
    """The printed commands, by what they are for."""
    lines = [line.split(":", 1) for line in said.splitlines() if ":" in line and "cerebras-cloud" in line]
    return {purpose.strip(): shlex.split(command) for purpose, command in lines}


@pytest.mark.parametrize("words", [("follow", JOB_ID), ("logs", "-f", JOB_ID), ("submit", "train.py")], ids=" ".join)
def test_ctrl_c_leaves_the_job_running_and_prints_commands_that_work(user, words):
    following = user.start(*words, "--home", str(user.home))
    assert following.stdout.read(len(LOG)) == LOG
    asked = list(user.api.requests)
    following.send_signal(signal.SIGINT)
    output, said = following.communicate(timeout=60)
    assert (following.returncode, output) == (130, b"")
    assert "Traceback" not in said.decode()
    assert user.api.requests == asked  # nothing was asked of the cluster: the job goes on

    user.api.holds = False
    user.api.events = WHOLE
    results = {}
    for purpose, command in commands_in(said.decode()).items():
        again = user.start(*command[1:])
        results[purpose] = (again.communicate(timeout=60)[0], again.returncode)
    assert results == {
        "follow it again": (LOG, 0),
        "cancel it": (f"{JOB_ID} is cancelling\n".encode(), 0),
    }
    assert f"POST /v1/jobs/{JOB_ID}/cancel" in user.api.requests


def test_a_reader_that_stops_reading_ends_the_command_quietly(user):
    user.api.holds = False
    user.api.events = story(b"line\n" * 100_000, job_view(JobStatus.SUCCEEDED), chunk_bytes=5000)
    following = user.start("logs", "-f", JOB_ID, "--home", str(user.home))
    assert following.stdout.readline() == b"line\n"
    following.stdout.close()
    with following.stderr:
        said = following.stderr.read().decode()
    assert following.wait(timeout=60) != 0
    assert "Traceback" not in said
