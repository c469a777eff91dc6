"""Writes and reads safetensors files, and knows of each tensor whether its bytes are those that were written.

The library's writer copies every tensor once more, and the file would have to be read again for its digests; the
format itself is a length, a JSON header and the tensors' bytes.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

CHUNK_BYTES = 4 << 20
ALIGNMENT_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
READERS = 4
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


LetGo = Callable[[Iterable[Tensor]], None]
"""Told of parts of tensors that were read and are not needed in memory any longer."""


def keep(parts: Iterable[Tensor]) -> None:
    """Leave them where they are."""


@dataclass(frozen=True)
class Written:
    """The sha256 of a file, and the CRC-32 of each tensor in it."""

    sha256: str
    checksums: dict[str, int]


class TensorFileError(Exception):
    """A file that is not what was written; the message names the tensor where there is one."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], let_go: LetGo = keep) -> Written:
    """Write contiguous tensors, bring them to disk, and say what was written. May raise `OSError`."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each is aligned
    in_order = {name: tensors[name] for name in order}
    header = _header(in_order)
    with ThreadPoolExecutor(1) as beside:  # the disk is waited for while the digest is taken
        digest = beside.submit(_sha256, header, in_order, let_go)
        checksums = {}
        with path.open("wb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(header))
            for name, tensor in in_order.items():
                checksum = 0
                for chunk in _chunks(tensor, let_go):
                    _write_all(file.fileno(), chunk)
                    checksum = zlib.crc32(chunk, checksum)
                checksums[name] = checksum
            os.fsync(file.fileno())
        return Written(digest.result(), checksums)


def _sha256(header: bytes, tensors: Mapping[str, Tensor], let_go: LetGo) -> str:
    digest = hashlib.sha256(header)
    for tensor in tensors.values():
        for chunk in _chunks(tensor, let_go):
            digest.update(chunk)
    return digest.hexdigest()


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries, start = {}, 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        entries[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _chunks(tensor: Tensor, let_go: LetGo = keep) -> Iterator[memoryview]:
    if not tensor.numel():
        return
    for part in torch.split(tensor.detach().reshape(-1).view(torch.uint8), CHUNK_BYTES):
        yield memoryview(part.numpy().data)
        let_go([part])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped into memory: nothing is read before it is used. Do not write to them.

    Raises `TensorFileError`, or `OSError` where there is no such file.
    """
    path.stat()
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, ValueError) as error:
        raise TensorFileError(_what_is_wrong(path) or f"not a safetensors file ({error})") from None


def read_into(path: Path, places: Mapping[str, Tensor], let_go: LetGo = keep) -> None:
    """Read tensors of a file that is known to be whole into memory that is there; none is in memory twice."""
    spans = _spans(path)
    with path.open("rb", buffering=0) as file:
        for name, place in places.items():
            file.seek(spans[name][0])
            target = place.detach() if place.is_contiguous() else torch.empty(place.shape, dtype=place.dtype)
            for chunk in _chunks(target, let_go):
                if file.readinto(chunk) != len(chunk):
                    raise TensorFileError(f"breaks off inside {name}")
            if target.data_ptr() != place.data_ptr():
                place.detach().copy_(target)


def check_tensors(path: Path, checksums: Mapping[str, int]) -> None:
    """Raise `TensorFileError` naming the tensors of a file whose bytes are not those that were written."""
    spans = _spans(path)
    missing = [name for name in checksums if name not in spans] + [name for name in spans if name not in checksums]
    if missing:
        raise TensorFileError(f"differs from what was saved: its header is damaged at {_listed(missing)}")
    with ThreadPoolExecutor(READERS) as pool:
        found = dict(zip(spans, pool.map(lambda span: _checksum(path, *span), spans.values()), strict=True))
    damaged = [name for name, checksum in found.items() if checksum != checksums[name]]
    if damaged:
        raise TensorFileError(f"differs from what was saved: the bytes of {_listed(damaged)} are damaged")


def _spans(path: Path) -> dict[str, tuple[int, int]]:
    """First byte of each tensor in the file, and the one behind its last."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    return {name: (8 + length + start, 8 + length + end) for name, (start, end) in places.items()}


def _checksum(path: Path, start: int, end: int) -> int:
    """The CRC-32 of a part of a file, read and not mapped: mapped pages would count as the process's memory."""
    checksum = 0
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < end:
            chunk = file.read(min(CHUNK_BYTES, end - start))
            checksum = zlib.crc32(chunk, checksum)
            start += len(chunk) or end
    return checksum


def tensor_checksum(tensor: Tensor) -> int:
    """The CRC-32 of a tensor's bytes."""
    checksum = 0
    for chunk in _chunks(tensor):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _what_is_wrong(path: Path) -> str | None:
    """Which tensor a file that was cut off breaks off in; None where its header cannot be read either."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size_bytes = path.stat().st_size
            if 8 + length > size_bytes:
                message = f"truncated: it has {size_bytes} bytes, and breaks off inside its header"
                return message if length <= MAX_HEADER_BYTES and file.read(1) == b"{" else None
            header = json.loads(file.read(length))
        ends = {name: 8 + length + entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"}
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    cut = sorted((end, name) for name, end in ends.items() if end > size_bytes)
    if not cut:
        return None
    return f"truncated: it has {size_bytes} bytes, and breaks off before the end of {cut[0][1]}"
