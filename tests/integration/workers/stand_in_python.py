"""Stands in for the user's Python: called with the same arguments, leaves the same files, by the contract.

The script in `code/` runs with the functions below as globals, instead of importing cerebras_pytorch.
"""

import hashlib
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

if sys.argv[1] == "-c":  # a question to the interpreter itself
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])

from cerebras_contract.artifacts import MANIFEST_FILE, Machine, Manifest, OptimizerSpec, PrecisionSpec, Versions
from cerebras_contract.checkpoints import CHECKPOINT_MANIFEST_FILE, CheckpointManifest
from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_contract.events import (
    ArtifactEvent,
    CheckpointEvent,
    FileEvent,
    MetricEvent,
    ProgressEvent,
    TrainingStartsEvent,
)
from cerebras_contract.run_directory import RunDirectory, StageResult

_, _, _, _, phase, _, root, script, *arguments = sys.argv
directory = RunDirectory(Path(root))
sequence = 0
stopped = False


class Compiled(BaseException):
    """The end of phase compile."""


def emit(kind, **fields):
    global sequence
    line = kind(sequence=sequence, time=time.time(), **fields).model_dump_json()
    sequence += 1
    with directory.events.open("a") as file:
        file.write(line + "\n")


def digest(data):
    return hashlib.sha256(data).hexdigest()


def compile_model():
    """As `cbt.compile`: in phase compile the script ends here, in phase execute training begins."""
    if phase == "compile":
        write_artifact()
        raise Compiled
    (directory.compile / MANIFEST_FILE).read_bytes()
    sys.stdout.flush()
    emit(TrainingStartsEvent, log_offset_bytes=directory.log_of("execute").stat().st_size)


def write_artifact():
    program = b"program of " + (directory.code / script).read_bytes()
    directory.compile.mkdir(exist_ok=True)
    (directory.compile / "plan.json").write_bytes(program)
    key = "cs_" + digest(program)[:16]
    manifest = Manifest(
        made_on=Machine(processor="any", instruction_set="any", threads=1),
        artifact_key=key,
        input_key="unused",
        created_at=time.time(),
        system="cs-2",
        num_csx=1,
        batch_size=1,
        precision=PrecisionSpec(),
        versions=Versions(compiler="1", torch="1"),
        ingredients={},
        parameters=[],
        trained=[],
        in_eval_mode=[],
        buffers=[],
        inputs=[],
        targets=[],
        outputs=[],
        output_tree="",
        optimizer=OptimizerSpec(name="SGD", groups=[], state={}),
        programs={},
        updates=[],
        digests={"plan.json": digest(program)},
    )
    (directory.compile / MANIFEST_FILE).write_text(manifest.model_dump_json())
    emit(ArtifactEvent, artifact_key=key, compiled=True, seconds=0.1)


def metric(step, **values):
    emit(MetricEvent, step=step, values=values, device_seconds=step / 10)


def progress(step, max_steps):
    emit(ProgressEvent, step=step, max_steps=max_steps, wall_samples_per_second=1.0)


def checkpoint(step):
    folder = directory.checkpoint(step)
    folder.mkdir(parents=True)
    weights = b"weights of step %d" % step
    (folder / "model.safetensors").write_bytes(weights)
    manifest = CheckpointManifest(
        step=step,
        artifact_key="cs_1",
        created_at=time.time(),
        optimizer="SGD",
        hyperparameters=[],
        digests={"model.safetensors": digest(weights)},
    )
    (folder / CHECKPOINT_MANIFEST_FILE).write_text(manifest.model_dump_json())
    emit(CheckpointEvent, step=step, path=f"checkpoints/step_{step}")


def leave(path, data=b"{}"):
    """A file of the run directory that the job keeps."""
    (directory.root / path).parent.mkdir(parents=True, exist_ok=True)
    (directory.root / path).write_bytes(data)
    emit(FileEvent, path=path)


def wait_to_be_stopped():
    """As a training loop that goes on until SIGTERM."""
    while not stopped:
        time.sleep(0.02)


def stop(*_):
    global stopped
    stopped = True


signal.signal(signal.SIGTERM, stop)
status, error = "succeeded", None
try:
    runpy.run_path(script, init_globals=dict(globals()), run_name="__main__")
except Compiled:
    pass
except BaseException as raised:
    traceback.print_exc()
    message = f"{type(raised).__name__}: {raised}"
    status, error = "failed", ErrorReport(code=ErrorCode.SCRIPT_RAISED, message=message, file=script)
if stopped and status == "succeeded":
    status = "stopped"
sys.stdout.flush()
directory.result.write_text(StageResult(status=status, error=error).model_dump_json())
sys.exit(0 if status != "failed" else 1)
