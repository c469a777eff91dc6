"""Reads what a user's process left in its run directory, trusting nothing: no link is followed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cerebras_controlplane.models import StoredFile
from cerebras_controlplane.storage.blobs import BlobStore


class LeftFilesError(Exception):
    """A file is missing, is not a plain file, or is not what its manifest says. The message is for the user."""


@contextmanager
def open_left(root: Path, *parts: str) -> Iterator[BinaryIO]:
    """Open the plain file `root/parts...`; raises `LeftFilesError`."""
    where = "/".join(parts)
    if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        raise LeftFilesError(f"{where!r} is not a plain file name")
    try:
        descriptor = _open_without_links(root, parts)
    except OSError as error:
        raise LeftFilesError(f"{where} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LeftFilesError(f"{where} is not a plain file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _open_without_links(root: Path, parts: tuple[str, ...]) -> int:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without O_NONBLOCK a pipe left in place of the file would hold the worker for ever.
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)


def read_left(root: Path, *parts: str, limit_bytes: int) -> bytes:
    """The bytes of a left file; raises `LeftFilesError` if it is missing or larger than the limit."""
    with open_left(root, *parts) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise LeftFilesError(f"{'/'.join(parts)} is larger than {limit_bytes} bytes")
    return data


def store_left(
    blobs: BlobStore, root: Path, *parts: str, expected_sha256: str | None = None, limit_bytes: int | None = None
) -> StoredFile:
    """Keep a left file as a blob; raises `LeftFilesError` if its digest is not the expected one, or it is too large."""
    with open_left(root, *parts) as file:
        if limit_bytes is not None and os.fstat(file.fileno()).st_size > limit_bytes:
            raise LeftFilesError(f"{'/'.join(parts)} is larger than {limit_bytes} bytes")
        sha256, size_bytes = blobs.put_stream(file)
    if expected_sha256 not in (None, sha256):
        raise LeftFilesError(f"{'/'.join(parts)} is not the file that its manifest names: the digests differ")
    return StoredFile(name=parts[-1], sha256=sha256, size_bytes=size_bytes)
