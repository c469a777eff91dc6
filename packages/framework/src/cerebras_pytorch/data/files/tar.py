"""Tar: samples as files of one name with several endings, `0001.png` beside `0001.cls`, as WebDataset lays them."""

import json
import tarfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from cerebras_pytorch.data.files.shards import Files, Shards, bad_file, open_bytes, shards_of

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


class TarDataset(Dataset[Any]):
    """Sample `i` is the files `keys` of the `i`-th name, as a tuple, or what `transform` makes of a dictionary of all.

    The dictionary is by ending (`png`, `cls`, what follows the first dot of the name); `__key__` is the name itself.
    Endings `cls`, `txt`, `json` and `npy` are decoded, others are bytes. The places of the files are found once, when
    the dataset is made: archives must not be compressed. Raises `ReportedError` with archive and name where a file is
    missing or cannot be decoded.
    """

    def __init__(
        self,
        files: Files,
        keys: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if (keys is None) == (transform is None):
            raise ValueError("say either which files a sample is made of (keys), or how (transform)")
        self.keys, self.transform = keys, transform
        paths = shards_of(files)
        self._samples = [_samples(path) for path in paths]
        self._shards = Shards(paths, map(len, self._samples), open_bytes)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Any:
        shard, own = self._shards.find(number)
        path, (name, places) = self._shards.paths[shard], self._samples[shard][own]
        wanted = places if self.keys is None else self.keys
        if missing := [key for key in wanted if key not in places]:
            raise bad_file(path, f"{name} has no file .{missing[0]}", f"It has: .{', .'.join(places)}.")
        file = self._shards.opened(shard)
        values: dict[str, Any] = {"__key__": name}
        for key in wanted:
            file.seek(places[key].offset)
            values[key] = _decoded(file.read(places[key].size_bytes), path, name, key)
        return self.transform(values) if self.transform else tuple(values[key] for key in self.keys or ())


def _samples(path: Path) -> list[tuple[str, dict[str, Place]]]:
    """The names of an archive in order, each with its files by ending."""
    samples: dict[str, dict[str, Place]] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile():
                    folder, slash, base = member.name.rpartition("/")
                    stem, _, ending = base.partition(".")
                    samples.setdefault(folder + slash + stem, {})[ending] = Place(member.offset_data, member.size)
    except tarfile.TarError as error:
        raise bad_file(path, f"not a readable tar archive without compression: {error}") from None
    ends = [place.offset + place.size_bytes for places in samples.values() for place in places.values()]
    if max(ends, default=0) > path.stat().st_size:
        raise bad_file(path, "is cut off inside its last file")
    return list(samples.items())


def _decoded(data: bytes, path: Path, name: str, ending: str) -> Any:
    decode = DECODERS.get(ending.rpartition(".")[2])
    try:
        return decode(data) if decode else data
    except (ValueError, EOFError) as error:
        raise bad_file(path, f"{name}.{ending} cannot be read: {error}") from None
