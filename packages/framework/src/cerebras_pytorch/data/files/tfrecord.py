"""TFRecord: serialized `tf.train.Example`s behind each other, each with its length and two checksums.

The framing is TensorFlow's documented one: length (8 bytes, little endian), masked CRC-32C of the length, the record,
masked CRC-32C of the record.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

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
    optional,
    shards_of,
    what_to_do,
)

HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
MASK_DELTA = 0xA282EAD8


class TFRecordDataset(Dataset[Any]):
    """Sample `i` is the features `keys` of record `i`, as a tuple, or what `transform` makes of a dictionary of all.

    A list of integers or floats is a tensor (int64, float32), one of bytes an uint8 tensor where it has one element,
    else a list of `bytes`. Where lists differ in length, `transform` or the loader's `collate_fn` brings them to one.
    The places of the records are found once, when the dataset is made. Raises `ReportedError` with file and record
    where one is cut off, has another checksum, or lacks a feature.
    """

    def __init__(
        self,
        files: Files,
        keys: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if (keys is None) == (transform is None):
            raise ValueError("say either which features a sample is made of (keys), or how (transform)")
        _crc32c(b"")
        self.keys = None if keys is None else names_of(keys)
        self.transform = transform
        paths = shards_of(files)
        self._offsets = [_offsets(path) for path in paths]
        self._shards = Shards(paths, map(len, self._offsets), open_bytes)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Any:
        shard, record = self._shards.find(number)
        path = self._shards.paths[shard]
        data = _record(self._shards.opened(shard), path, int(self._offsets[shard][record]), record)
        features = _features(data, path, record)
        if self.transform:
            return self.transform(features)
        missing = [key for key in self.keys or () if key not in features]
        if missing:
            known = f"It has: {', '.join(sorted(features)) or 'none'}."
            raise bad_file(path, f"record {record} has no feature {missing[0]!r}", known)
        return tuple(features[key] for key in self.keys or ())


def _offsets(path: Path) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Where each record begins. Reads the headers alone."""
    offsets: list[int] = []
    place, size = 0, path.stat().st_size
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            length = _length(file.read(HEADER.size), path, len(offsets), place)
            offsets.append(place)
            place += HEADER.size + length + FOOTER.size
    if place != size:
        cut = f"record {len(offsets) - 1} is cut off: it would end at byte {place}, the file at {size}"
        raise bad_file(path, cut, AGAIN)
    return np.array(offsets, dtype=np.int64)


def _length(header: bytes, path: Path, record: int, place: int) -> int:
    if len(header) < HEADER.size:
        raise bad_file(path, f"record {record} is cut off in its header, at byte {place}", AGAIN)
    length, checksum = HEADER.unpack(header)
    if _masked(header[:8]) != checksum:
        raise bad_file(
            path, f"record {record}, at byte {place}, has a damaged header (its checksum differs)", what_to_do(path)
        )
    return int(length)


def _record(file: BinaryIO, path: Path, place: int, record: int) -> bytes:
    file.seek(place)
    data = file.read(_length(file.read(HEADER.size), path, record, place))
    footer = file.read(FOOTER.size)
    if len(footer) < FOOTER.size or _masked(data) != FOOTER.unpack(footer)[0]:
        raise bad_file(path, f"record {record}, at byte {place}, is damaged (its checksum differs)", AGAIN)
    return data


def _masked(data: bytes) -> int:
    checksum = _crc32c(data)
    return (((checksum >> 15) | (checksum << 17)) + MASK_DELTA) & 0xFFFF_FFFF


def _crc32c(data: bytes) -> int:
    return int(optional("google_crc32c", "tfrecord", "TFRecordDataset").value(data))


def _features(data: bytes, path: Path, record: int) -> dict[str, Any]:
    example = _example_type()()
    try:
        example.ParseFromString(data)
    except Exception:  # protobuf's own kinds differ between its implementations
        raise bad_file(path, f"record {record} is no tf.train.Example") from None
    return {name: _value(feature) for name, feature in example.features.feature.items()}


def _value(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else []
    if kind == "bytes_list":
        parts = list(values)
        return torch.as_tensor(np.frombuffer(bytearray(parts[0]), np.uint8)) if len(parts) == 1 else parts
    return torch.tensor(list(values), dtype=torch.float32 if kind == "float_list" else torch.int64)


@cache
def _example_type() -> Any:
    """`tf.train.Example`, described here so that TensorFlow is not needed."""
    name = "google.protobuf"
    descriptors = optional(f"{name}.descriptor_pb2", "tfrecord", "TFRecordDataset")
    pool = optional(f"{name}.descriptor_pool", "tfrecord", "TFRecordDataset").DescriptorPool()
    file = descriptors.FileDescriptorProto(name="example.proto", package="example", syntax="proto3")
    field = descriptors.FieldDescriptorProto
    for kind, type_ in (("Bytes", field.TYPE_BYTES), ("Float", field.TYPE_FLOAT), ("Int64", field.TYPE_INT64)):
        values = file.message_type.add(name=f"{kind}List")
        values.field.add(name="value", number=1, type=type_, label=field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(("Bytes", "Float", "Int64"), start=1):
        feature.field.add(
            name=f"{kind.lower()}_list", number=number, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL,
            type_name=f".example.{kind}List", oneof_index=0,
        )  # fmt: skip
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".example.Feature"
    )
    features.field.add(
        name="feature", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED,
        type_name=".example.Features.FeatureEntry",
    )  # fmt: skip
    file.message_type.add(name="Example").field.add(
        name="features", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".example.Features"
    )
    pool.Add(file)
    factory = optional(f"{name}.message_factory", "tfrecord", "TFRecordDataset")
    return factory.GetMessageClass(pool.FindMessageTypeByName("example.Example"))
