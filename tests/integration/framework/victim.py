"""Processes to kill: on each line of standard input, one is forked that does what the line says.

A fork has everything imported and the artifact loaded already, so that hundreds can be killed in little time.
"""

import functools
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.fixtures import resuming

from cerebras_pytorch.checkpoints.folder import KeepRule, clear_leftovers
from cerebras_pytorch.checkpoints.save import Snapshot, write_checkpoint
from cerebras_pytorch.checkpoints.saver import Saver
from cerebras_pytorch.training import start

ELEMENTS = 1 << 18


def snapshot(step: int, elements: int = ELEMENTS) -> Snapshot:
    """A checkpoint whose every element is its step."""
    tensors = {name: torch.full((elements,), float(step)) for name in ("first", "second")}
    return Snapshot(step, "cs_0", tensors, "SGD", [], dict(tensors), {"step": step}, dict(tensors), {"step": step})


def save_for_ever(folder: str, step: int) -> None:
    """Save one checkpoint after the other, in the background, and say of each that it is complete."""
    saver = Saver()
    clear_leftovers(Path(folder))
    while True:
        saver.save(Path(folder) / f"step_{step}", snapshot(step), KeepRule(newest=2))
        for saved in saver.take_saved():
            say(f"saved {saved.step}")
        step += 1


def save_until_call(folder: str, step: int, call: int) -> None:
    """Save a checkpoint, and be killed at the call of that number to the operating system."""
    calls = 0

    def count(_frame: object, event: str, function: object) -> None:
        nonlocal calls
        if event == "c_call" and getattr(function, "__module__", None) in ("posix", "_io", "io"):
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(count)
    sys.setprofile(count)
    write_checkpoint(Path(folder) / f"step_{step}", snapshot(step, 4))
    sys.setprofile(None)
    say("complete")


def train(folder: str, report: str) -> None:
    """Train from the newest checkpoint on, saving each step."""
    resuming.train(Path(folder), report=Path(report), autoload_last_checkpoint=True, checkpoint_steps=1)
    say("complete")


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def main() -> None:
    if os.fork() == 0:  # a process that has used autograd's threads cannot be forked
        resuming.train(Path(sys.argv[1]), epochs=0)
        os._exit(0)
    os.wait()
    start.load_artifact = functools.cache(start.load_artifact)
    with resuming.run_folder(Path(sys.argv[1])):
        start.load_artifact(Path(sys.argv[1]) / "compile")
    say("ready")
    for line in sys.stdin:
        task, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                globals()[task](*arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        say(f"pid {child}")
        os.waitpid(child, 0)
        say("ended")


if __name__ == "__main__":
    main()
