"""Blobs: immutable bytes, named by their sha256."""

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from obstore.store import LocalStore

from cerebras_contract.digests import CHUNK_BYTES
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError


class BlobStore:
    """Puts and reads blobs. A blob appears under its digest complete or not at all."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._store = LocalStore(folder)

    def put_bytes(self, data: bytes) -> str:
        """Keep `data`; answers its sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        self._store.put(_place(sha256), data)
        return sha256

    def put_stream(self, stream: BinaryIO) -> tuple[str, int]:
        """Keep what a stream holds; answers its sha256 and size in bytes.

        The digest is taken of the bytes as they are written, since a file of a user's process may change
        between two readings.
        """
        digest, size_bytes = hashlib.sha256(), 0

        def chunks() -> Iterator[bytes]:
            nonlocal size_bytes
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
                yield chunk

        incoming = f"incoming/{uuid.uuid4().hex}"
        self._store.put(incoming, chunks())
        sha256 = digest.hexdigest()
        self._store.rename(incoming, _place(sha256))
        return sha256, size_bytes

    def read(self, sha256: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of a blob, or those from `start` up to `end`."""
        if end is None:
            return bytes(self._store.get(_place(sha256)).bytes())[start:]
        return bytes(self._store.get_range(_place(sha256), start=start, end=end))

    def stream(self, sha256: str) -> Iterator[bytes]:
        """The bytes of a blob in chunks of about a MiB."""
        try:
            result = self._store.get(_place(sha256))
        except FileNotFoundError:
            raise ReportedError(
                ErrorReport(code=ErrorCode.INTERNAL, message=f"blob {sha256} is not in the blob store")
            ) from None
        return (bytes(chunk) for chunk in result.stream(min_chunk_size=CHUNK_BYTES))

    def copy_to(self, sha256: str, path: Path) -> None:
        """Write a blob to a file."""
        with path.open("wb") as file:
            for chunk in self.stream(sha256):
                file.write(chunk)


def _place(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"
