"""HDF5: rows of arrays that lie beside each other in each of several files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cerebras_pytorch.data.files.shards import AGAIN, Files, Shards, bad_file, names_of, optional, shards_of


class HDF5Dataset(Dataset[Any]):
    """Sample `i` is row `i` of each of the arrays `keys`, as a tuple of tensors, or what `transform` makes of that.

    The files follow each other in order; all have the same keys, with rows of the same shape and type, which are
    numbers. Raises `ReportedError` where that is not so, with the file and the key, and where a row cannot be read.
    """

    def __init__(
        self, files: Files, keys: Sequence[str], transform: Callable[[tuple[Tensor, ...]], Any] | None = None
    ) -> None:
        self.keys = names_of(keys)
        self.transform = transform
        paths = shards_of(files)
        layouts = [_layout(path, self.keys) for path in paths]
        for path, layout in zip(paths, layouts, strict=True):
            _refuse_other_rows(path, layout, paths[0], layouts[0])
        self._shards = Shards(paths, [rows for rows, _ in layouts], _open)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Any:
        shard, row = self._shards.find(number)
        file = self._shards.opened(shard)
        sample = tuple(_tensor(file, key, row, self._shards.paths[shard]) for key in self.keys)
        return self.transform(sample) if self.transform else sample


def _tensor(file: Any, key: str, row: int, path: Path) -> Tensor:
    try:
        value = np.asarray(file[key][row])
    except OSError as error:
        raise bad_file(path, f"row {row} of {key!r} cannot be read: {error}", AGAIN) from None
    return torch.as_tensor(value.astype(value.dtype.newbyteorder("="), copy=False))


Layout = tuple[int, dict[str, tuple[tuple[int, ...], str]]]
"""Rows of a file; by key the shape of a row, and the type."""


def _open(path: Path) -> Any:
    h5py = optional("h5py", "hdf5", "HDF5Dataset")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise bad_file(path, f"not a readable HDF5 file: {error}", AGAIN) from None


def _layout(path: Path, keys: list[str]) -> Layout:
    with _open(path) as file:
        for key in keys:
            if key not in file or not hasattr(file[key], "shape"):
                raise bad_file(path, f"has no array {key!r}", f"It has: {', '.join(file) or 'nothing'}.")
            if not file[key].shape:
                raise bad_file(path, f"{key!r} is one value, and has no rows")
            _refuse_no_numbers(path, key, file[key].dtype)
        rows = {key: int(file[key].shape[0]) for key in keys}
        if len(set(rows.values())) != 1:
            counts = ", ".join(f"{key} {count}" for key, count in rows.items())
            raise bad_file(path, f"its arrays have different numbers of rows: {counts}")
        return rows[keys[0]], {key: (tuple(file[key].shape[1:]), str(file[key].dtype)) for key in keys}


def _refuse_no_numbers(path: Path, key: str, dtype: Any) -> None:
    numbers = optional("h5py", "hdf5", "HDF5Dataset").check_vlen_dtype(dtype) or dtype
    try:
        torch.as_tensor(np.empty(0, np.dtype(numbers).newbyteorder("=")))
    except TypeError:
        advice = "Write them as numbers: texts as their tokens, or as bytes of one length (uint8)."
        raise bad_file(path, f"rows of {key!r} are {dtype}, and no numbers", advice) from None


def _refuse_other_rows(path: Path, layout: Layout, first: Path, expected: Layout) -> None:
    for key, row in layout[1].items():
        if row != expected[1][key]:
            here, there = (f"{dtype}{list(shape)}" for shape, dtype in (row, expected[1][key]))
            raise bad_file(path, f"rows of {key!r} are {here} here, and {there} in {first}")
