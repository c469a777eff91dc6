"""Shards: the files of a dataset, in order, and which of them holds a sample."""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from glob import glob, has_magic
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError

OPEN_FILES = 64
"""Of a dataset, in each process: those last read. A process may have 1,024 on many systems, a dataset more files."""
AGAIN = "Fetch or write this file again, or leave it out."
GZIP = b"\x1f\x8b"


class Closable(Protocol):
    def close(self) -> None: ...


Open = TypeVar("Open", bound=Closable)
Files = str | Path | Sequence[str | Path]
"""A file, a pattern such as `data/train-*.h5`, or several of either."""


def shards_of(files: Files) -> list[Path]:
    """The files, those of a pattern by name. Raises `ReportedError` where one is not there."""
    names = [files] if isinstance(files, (str, Path)) else files
    found: list[Path] = []
    for name in map(str, names):
        is_pattern = has_magic(name) and not Path(name).exists()
        matching = sorted(glob(name, recursive=True)) if is_pattern else [name]  # noqa: PTH207 (a path may be absolute)
        if not matching:
            raise bad_file(name, "no file has such a name", "Paths are relative to the working directory.")
        found += map(Path, matching)
    for path in found:
        if not path.is_file():
            if path.is_dir():
                raise bad_file(path, "is a folder", f"Name its files by a pattern, such as {path.name}/train-*.")
            raise bad_file(path, "no such file", "Paths are relative to the working directory.")
    if not found:
        raise ValueError("a dataset needs at least one file")
    return found


def names_of(keys: Sequence[str]) -> list[str]:
    """A list of names; one name by itself would be read letter by letter."""
    if isinstance(keys, str) or not keys:
        raise ValueError(f"keys is a list of one name or more, such as ['image', 'label'], not {keys!r}")
    return list(keys)


class Shards(Generic[Open]):
    """Files that are opened when they are read, in each process anew, and how many samples each has."""

    def __init__(self, paths: Sequence[Path], sizes: Iterable[int], open_file: Callable[[Path], Open]) -> None:
        self.paths = list(paths)
        self._ends = list(accumulate(sizes))
        self._open_file = open_file
        self._opened: OrderedDict[int, Open] = OrderedDict()
        self._process = os.getpid()

    def __len__(self) -> int:
        return self._ends[-1]

    def find(self, number: int) -> tuple[int, int]:
        """The shard of a sample, and its number there."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        number %= len(self)
        shard = bisect_right(self._ends, number)
        return shard, number - (self._ends[shard - 1] if shard else 0)

    def opened(self, shard: int) -> Open:
        if self._process != os.getpid():  # a loader's worker: what its parent has opened has one position for both
            self._opened, self._process = OrderedDict(), os.getpid()
        if shard not in self._opened:
            if len(self._opened) >= OPEN_FILES:
                self._opened.popitem(last=False)[1].close()
            self._opened[shard] = self._open_file(self.paths[shard])
        self._opened.move_to_end(shard)
        return self._opened[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": OrderedDict()}


def open_bytes(path: Path) -> BinaryIO:
    """A file to read from at any place."""
    return path.open("rb")


def what_to_do(path: Path) -> str:
    """Advice for a file that cannot be read from its beginning on."""
    with path.open("rb") as file:
        return "It is compressed: unpack it first, with gunzip." if file.read(len(GZIP)) == GZIP else AGAIN


def optional(module: str, extra: str, what: str) -> Any:
    """A module of an extra of this package; a `ReportedError` names the extra where it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CONFIG_INVALID,
                message=f"{what} needs the package {module.split('.')[0]}, which is not installed",
                advice=f"pip install 'cerebras-emulator-pytorch[{extra}]'",
            )
        ) from None


class BadFile(ReportedError):
    """A file of data that cannot be used.

    From a loader's worker process torch hands on the text of an error alone, with a traceback before it: so it can be
    made of that, too.
    """

    def __init__(self, report: ErrorReport | str) -> None:
        if isinstance(report, str):
            message, _, advice = report.rpartition(f"{type(self).__name__}: ")[2].strip().partition("\n")
            code = ErrorCode.DATA_INVALID
            report = ErrorReport(code=code, message=message.removesuffix(f" [{code}]"), advice=advice.strip() or None)
        super().__init__(report)


def bad_file(path: Path | str, message: str, advice: str | None = None) -> BadFile:
    """The error of a file of data that cannot be used."""
    return BadFile(ErrorReport(code=ErrorCode.DATA_INVALID, message=message, file=str(path), advice=advice))
