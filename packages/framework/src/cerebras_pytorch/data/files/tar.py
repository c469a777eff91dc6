"""Tar: samples as files of one name with several endings, `0001.png` beside `0001.cls`, as WebDataset lays them."""

import json
import tarfile
from array import array
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from cerebras_pytorch.data.files.shards import (
    AGAIN,
    Files,
    Shards,
    bad_file,
    names_of,
    open_bytes,
    shards_of,
    what_to_do,
)

# How a file of a sample is read, by its ending; of another one a sample has the bytes.
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "cls": lambda data: int(data),
    "txt": lambda data: data.decode("utf-8"),
    "json": json.loads,
    "npy": lambda data: torch.as_tensor(np.load(BytesIO(data), allow_pickle=False)),
}


class Place(NamedTuple):
    """Where a file lies in an archive."""

    offset: int
    size_bytes: int


class Index:
    """The names of an archive in order, and where the files of each lie: in an array, since there may be millions."""

    def __init__(self, names: list[str], endings: list[str], table: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        """`table` has a row a file, sorted by sample: numbers of sample and ending, offset, size in bytes."""
        self.names, self.endings = names, endings
        self._places = table[:, 1:]
        self._begin = np.searchsorted(table[:, 0], np.arange(len(names) + 1))

    def places(self, sample: int) -> dict[str, Place]:
        """Where the files of a sample lie, by ending."""
        rows = self._places[self._begin[sample] : self._begin[sample + 1]].tolist()
        return {self.endings[ending]: Place(offset, size) for ending, offset, size in rows}


class TarDataset(Dataset[Any]):
    """Sample `i` is the files `keys` of the `i`-th name, as a tuple, or what `transform` makes of a dictionary of all.

    The dictionary is by ending (`png`, `cls`, what follows the first dot of the name); `__key__` is the name itself.
    Endings `cls`, `txt`, `json` and `npy` are decoded, others are bytes. The places of the files are found once, when
    the dataset is made: archives must not be compressed. Files without an ending, and hidden ones, are passed over, as
    in WebDataset. Raises `ReportedError` with archive and name where a file is missing or cannot be decoded, and where
    an archive is cut off or damaged.
    """

    def __init__(
        self,
        files: Files,
        keys: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if (keys is None) == (transform is None):
            raise ValueError("say either which files a sample is made of (keys), or how (transform)")
        self.keys = None if keys is None else names_of(keys)
        self.transform = transform
        paths = shards_of(files)
        self._indices = [_index(path) for path in paths]
        self._shards = Shards(paths, [len(index.names) for index in self._indices], open_bytes)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Any:
        shard, own = self._shards.find(number)
        path, index = self._shards.paths[shard], self._indices[shard]
        name, places = index.names[own], index.places(own)
        wanted = places if self.keys is None else self.keys
        if missing := [key for key in wanted if key not in places]:
            raise bad_file(path, f"{name} has no file .{missing[0]}", f"It has: .{', .'.join(places)}.")
        file = self._shards.opened(shard)
        values: dict[str, Any] = {"__key__": name}
        for key in wanted:
            file.seek(places[key].offset)
            values[key] = _decoded(file.read(places[key].size_bytes), path, name, key)
        return self.transform(values) if self.transform else tuple(values[key] for key in self.keys or ())


def _index(path: Path) -> Index:
    samples: dict[str, int] = {}
    endings: dict[str, int] = {}
    files = array("q")
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                folder, slash, base = member.name.rpartition("/")
                stem, _, ending = base.partition(".")
                if member.isfile() and stem and ending:
                    sample = samples.setdefault(folder + slash + stem, len(samples))
                    kind = endings.setdefault(ending, len(endings))
                    files.extend((sample, kind, member.offset_data, member.size))
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            end = archive.offset
    except tarfile.TarError as error:
        raise bad_file(path, f"not a readable tar archive without compression: {error}", what_to_do(path)) from None
    _refuse_less(path, end, len(samples))
    table = np.array(files, dtype=np.int64).reshape(-1, 4)
    return Index(list(samples), list(endings), table[np.argsort(table[:, 0], kind="stable")])


def _refuse_less(path: Path, end: int, samples: int) -> None:
    """After the last file there is a block of zeros, and nothing else: a reader of tar ends at a damaged header, too,
    or where a file was cut off, and the samples behind that would be missing without a word."""
    with path.open("rb") as file:
        file.seek(end)
        if len(block := file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise bad_file(path, f"is cut off: at byte {end}, after {samples} samples, there is no end mark", AGAIN)
        if any(block):
            raise bad_file(path, f"is damaged: at byte {end}, after {samples} samples, there is no header", AGAIN)
        while block := file.read(1 << 20):
            if block.strip(b"\0"):
                advice = "Archives that were put behind each other are read one by one: give them as several files."
                raise bad_file(path, f"goes on behind its end mark at byte {end}, after {samples} samples", advice)


def _decoded(data: bytes, path: Path, name: str, ending: str) -> Any:
    decode = DECODERS.get(ending.rpartition(".")[2])
    try:
        return decode(data) if decode else data
    except (ValueError, TypeError, EOFError) as error:
        raise bad_file(path, f"{name}.{ending} cannot be read: {error}") from None
