import hashlib
import os
from pathlib import Path

import pytest

from cerebras_controlplane.storage.blobs import BlobStore
from cerebras_controlplane.worker.left_files import LeftFilesError, read_left, store_left


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "run"
    (root / "compile").mkdir(parents=True)
    (root / "compile" / "plan.json").write_bytes(b"plan")
    (root / "compile" / "link").symlink_to(tmp_path / "secret")
    (root / "folder_link").symlink_to(tmp_path)
    (root / "inner_link").symlink_to("compile")
    os.mkfifo(root / "pipe")
    return root


def test_a_plain_file_is_read_and_kept(root: Path, blobs: BlobStore) -> None:
    assert read_left(root, "compile", "plan.json", limit_bytes=4) == b"plan"
    kept = store_left(blobs, root, "compile", "plan.json")
    assert (kept.name, kept.size_bytes) == ("plan.json", 4)
    assert kept.sha256 == hashlib.sha256(b"plan").hexdigest()
    assert blobs.read(kept.sha256) == b"plan"


@pytest.mark.parametrize(
    "parts",
    [
        ("compile", "link"),
        ("folder_link", "secret"),
        ("inner_link", "plan.json"),
        ("..", "secret"),
        ("compile/../../secret",),
        ("pipe",),
        ("compile",),
        ("missing",),
        ("compile", "a\0b"),
        ("",),
    ],
)
def test_nothing_else_is_followed_or_waited_for(root: Path, parts: tuple[str, ...]) -> None:
    with pytest.raises(LeftFilesError):
        read_left(root, *parts, limit_bytes=100)


def test_a_file_over_the_limit_or_with_another_digest_is_refused(root: Path, blobs: BlobStore) -> None:
    with pytest.raises(LeftFilesError, match="larger than 3"):
        read_left(root, "compile", "plan.json", limit_bytes=3)
    with pytest.raises(LeftFilesError, match="digests differ"):
        store_left(blobs, root, "compile", "plan.json", expected_sha256="0" * 64)
