"""The folder of a run's checkpoints: which are there, which is newest, which are let go.

A folder appears under its name complete, and goes from it at once: what is being written or removed has a name that
begins with a dot.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cerebras_contract.errors import ReportedError
from cerebras_contract.run_directory import CHECKPOINT_FOLDER_PREFIX
from cerebras_pytorch.checkpoints.read import Checkpoint, read_checkpoint, read_manifest

PARTIAL, REPLACED, REMOVED = ".partial", ".replaced", ".removed"


@dataclass(frozen=True)
class KeepRule:
    """Which checkpoints stay: the `newest` so many, and those at multiples of `every` steps. None: all, and none."""

    newest: int | None = None
    every: int | None = None


def hidden(folder: Path, ending: str) -> Path:
    """The name beside `folder` under which it is written or removed."""
    return folder.with_name(f".{folder.name}{ending}")


def put_in_place(partial: Path, folder: Path) -> None:
    """Give a complete folder its name. Whatever instant this is cut off at, `clear_leftovers` finds one complete."""
    replaced = hidden(folder, REPLACED)
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    partial.rename(folder)
    bring_to_disk(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def clear_leftovers(parent: Path) -> None:
    """Remove what a process that was killed was writing or removing; bring back what it was about to replace."""
    for path in parent.glob(f".*{REPLACED}"):
        bring_back(path.with_name(path.name.removesuffix(REPLACED).removeprefix(".")))
    for ending in (PARTIAL, REPLACED, REMOVED):
        for path in parent.glob(f".{CHECKPOINT_FOLDER_PREFIX}*{ending}"):
            shutil.rmtree(path, ignore_errors=True)


def bring_back(folder: Path) -> None:
    """Where a process was killed between taking a checkpoint away and putting the new one in place: take the old."""
    replaced = hidden(folder, REPLACED)
    if replaced.is_dir() and not folder.exists():
        replaced.rename(folder)


def newest_checkpoint(parent: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint that was saved last; one that is damaged is passed over with a warning. None where is none."""
    for folder in _saved_last_first(parent):
        try:
            return read_checkpoint(folder)
        except ReportedError as error:
            warn(f"passed over {folder.name}: {error.report.message} ({error.report.file})")
    return None


def let_go(parent: Path, rule: KeepRule) -> list[int]:
    """Remove the checkpoints that the rule does not keep; their steps."""
    if rule.newest is None:
        return []
    removed = []
    for folder in _saved_last_first(parent)[rule.newest :]:
        step = _step_of(folder)
        if rule.every is None or step % rule.every:
            going = hidden(folder, REMOVED)
            folder.rename(going)
            shutil.rmtree(going, ignore_errors=True)
            removed.append(step)
    return removed


def _saved_last_first(parent: Path) -> list[Path]:
    """Folders of checkpoints by the time they were saved, which says more than the step: a run that began anew in
    the same place has lower ones."""
    found = []
    for folder in parent.glob(f"{CHECKPOINT_FOLDER_PREFIX}*"):
        try:
            manifest = read_manifest(folder)
        except ReportedError:
            continue
        found.append((manifest.created_at, manifest.step, folder))
    return [folder for _, _, folder in sorted(found, reverse=True)]


def _step_of(folder: Path) -> int:
    return read_manifest(folder).step


def bring_to_disk(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
