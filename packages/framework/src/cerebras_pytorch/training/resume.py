"""Where a run begins: anew, or from a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cerebras_contract.states import StageKind
from cerebras_pytorch.checkpoints.folder import bring_back, clear_leftovers, newest_checkpoint
from cerebras_pytorch.checkpoints.read import Checkpoint, read_checkpoint
from cerebras_pytorch.process import Process
from cerebras_pytorch.settings import RunSettings
from cerebras_pytorch.training.state import Place


@dataclass(frozen=True)
class Resume:
    """A checkpoint that the loop has not yet come to. `own`: of this run itself, from before it was cut off."""

    checkpoint: Checkpoint
    place: Place
    own: bool


def checkpoint_to_begin_from(
    process: Process, settings: RunSettings, warn: Callable[[str], None]
) -> tuple[Checkpoint, bool] | None:
    """The checkpoint, and whether it is the run's own; None to begin anew.

    In a job that is the newest in `checkpoints/`, which the worker laid there. By hand it is what run.yaml says.
    """
    folder = process.run_directory.checkpoints
    clear_leftovers(folder)
    if process.stage == StageKind.EXECUTE or settings.autoload_last_checkpoint:
        newest = newest_checkpoint(folder, warn)
        if newest is not None:
            return newest, True
    if not settings.checkpoint_path:
        return None
    bring_back(Path(settings.checkpoint_path))
    return read_checkpoint(settings.checkpoint_path), False
