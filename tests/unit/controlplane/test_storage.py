import hashlib
import io
from pathlib import Path

import pytest

from cerebras_contract.errors import ReportedError
from cerebras_controlplane.storage.blobs import BlobStore


class Breaks(io.BytesIO):
    """A source that fails in the middle."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 0:
            raise OSError("source is gone")
        return super().read(size)


@pytest.mark.parametrize("size", [0, 1, (5 << 20) + 1])
def test_a_stream_is_kept_under_its_digest(blobs: BlobStore, tmp_path: Path, size: int) -> None:
    data = bytes(size)
    sha256, size_bytes = blobs.put_stream(io.BytesIO(data))
    assert (sha256, size_bytes) == (hashlib.sha256(data).hexdigest(), size)
    assert b"".join(blobs.stream(sha256)) == data
    blobs.copy_to(sha256, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data


def test_a_broken_stream_leaves_nothing(blobs: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="source is gone"):
        blobs.put_stream(Breaks(bytes(3 << 20)))
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def test_a_part_of_a_blob(blobs: BlobStore) -> None:
    sha256 = blobs.put_bytes(b"0123456789")
    assert blobs.read(sha256, 3, 6) == b"345"
    assert blobs.read(sha256, 8) == b"89"


def test_a_missing_blob_is_an_error_with_its_name(blobs: BlobStore) -> None:
    with pytest.raises(ReportedError, match="f" * 64):
        blobs.stream("f" * 64)
