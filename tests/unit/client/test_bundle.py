"""Packing: the same files give the same bytes; what cannot travel is named."""

import io
import os
import socket
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebras_cloud.bundle import packed, readable_size
from cerebras_cloud.errors import BundleError


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def digest(folder: Path) -> str:
    with packed(folder) as bundle:
        return bundle.sha256


def members(folder: Path) -> dict[str, tarfile.TarInfo]:
    with packed(folder) as bundle, tarfile.open(fileobj=io.BytesIO(bundle.tar.read())) as tar:
        return {member.name: member for member in tar.getmembers()}


FILES = {"train.py": b"print()", "a/b.txt": b"b", "a.txt": b"", "data/x.bin": bytes(range(256))}


def test_the_same_files_give_the_same_bytes_wherever_and_whenever_they_were_written(tmp_path):
    one = write(tmp_path / "one", FILES)
    other = write(tmp_path / "other", dict(reversed(FILES.items())))
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
    (other / "train.py").chmod(0o600)
    assert digest(one) == digest(other)


def test_a_bundle_says_nothing_of_the_machine(tmp_path):
    found = members(write(tmp_path, FILES))
    assert list(found) == ["a/b.txt", "a.txt", "data/x.bin", "train.py"]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in found.values()} == {(0, 0, 0, "", "")}


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.text("ab é\n'\"\\*", min_size=1, max_size=6), st.binary(max_size=20), min_size=1, max_size=5),
    st.data(),
)
def test_what_is_packed_is_what_was_there_and_a_changed_byte_changes_the_digest(tmp_path_factory, files, data):
    folder = write(tmp_path_factory.mktemp("folder"), files)
    with packed(folder) as bundle, tarfile.open(fileobj=bundle.tar) as tar:
        assert {member.name: tar.extractfile(member).read() for member in tar.getmembers()} == files
        assert bundle.names == frozenset(files)
        before = bundle.sha256
    changed = data.draw(st.sampled_from(sorted(files)))
    write(folder, {changed: bytes([255]) + files[changed]})
    assert digest(folder) != before


def test_the_executable_bit_travels_and_no_other(tmp_path):
    write(tmp_path, {"run.sh": b"", "secret.txt": b""})
    before = digest(tmp_path)
    (tmp_path / "run.sh").chmod(0o700)
    (tmp_path / "secret.txt").chmod(0o666)
    found = members(tmp_path)
    assert (found["run.sh"].mode, found["secret.txt"].mode) == (0o755, 0o644)
    assert digest(tmp_path) != before


def test_empty_folders_travel_but_those_emptied_by_rules_leave_no_trace(tmp_path):
    write(tmp_path, {"a.pyc": b"", "only/b.pyc": b""})
    (tmp_path / "empty").mkdir()
    assert set(members(tmp_path)) == {"empty"}


def test_links_inside_the_folder_stay_links_and_hold_elsewhere(tmp_path):
    folder = write(tmp_path / "folder", {"data/big.bin": b"1"})
    (folder / "src").mkdir()
    (folder / "src" / "relative").symlink_to("../data/big.bin")
    (folder / "src" / "absolute").symlink_to(folder / "data")
    found = members(folder)
    assert {name: m.linkname for name, m in found.items() if m.issym()} == {
        "src/relative": "../data/big.bin",
        "src/absolute": "../data",
    }
    assert "src/absolute/big.bin" not in found


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", ".."])
def test_a_link_that_leaves_the_folder_is_refused_by_name(tmp_path, target):
    write(tmp_path, {"outside": b"", "folder/sub/train.py": b""})
    (tmp_path / "folder" / "leaves").symlink_to(target)
    with pytest.raises(BundleError, match="the link leaves leaves the folder"), packed(tmp_path / "folder"):
        pass


def test_an_ignored_link_may_lead_anywhere(tmp_path):
    write(tmp_path, {".cerebrasignore": b"/leaves\n"})
    (tmp_path / "leaves").symlink_to("/etc")
    assert set(members(tmp_path)) == {".cerebrasignore"}


def test_what_cannot_travel_is_left_out_with_a_warning(tmp_path):
    write(tmp_path, {"train.py": b""})
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with packed(tmp_path) as bundle:
            assert bundle.names == {"train.py"}
            assert [warning.split()[0] for warning in bundle.warnings] == ["broken", "fifo", "loop", "socket"]


def test_names_that_are_long_or_odd_travel(tmp_path):
    names = {"x" * 250, "f/" * 60 + "deep.txt", "überall.txt", "with space", "-rf", "line\nbreak"}
    assert set(members(write(tmp_path, dict.fromkeys(names, b"")))) == names


def test_a_name_that_is_not_utf8_is_refused_by_name_unless_it_is_ignored(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"")
    with pytest.raises(BundleError, match=r"caf\\\\xe9.txt.*not UTF-8"), packed(tmp_path):
        pass
    write(tmp_path, {".cerebrasignore": b"*.txt\n"})
    assert set(members(tmp_path)) == {".cerebrasignore"}


def test_a_folder_above_the_limit_is_refused_with_its_biggest_paths(tmp_path):
    write(tmp_path, {f"data/{n}.bin": b"x" * n for n in range(1, 13)})
    with packed(tmp_path, limit_bytes=78) as bundle:
        assert bundle.content_bytes == 78
    with pytest.raises(BundleError) as refused, packed(tmp_path, limit_bytes=77):
        pass
    listed = [line.split()[-1] for line in str(refused.value).splitlines()[1:]]
    assert listed == [f"data/{n}.bin" for n in range(12, 2, -1)]


def test_a_file_that_changes_while_it_is_packed_is_named(tmp_path, monkeypatch):
    write(tmp_path, {"a.log": b"x" * 100})
    add = tarfile.TarFile.addfile

    def add_and_write(tar, header, content=None):
        add(tar, header, content)
        write(tmp_path, {"a.log": b"x" * 200})

    monkeypatch.setattr(tarfile.TarFile, "addfile", add_and_write)
    with pytest.raises(BundleError, match="a.log changed while it was packed"), packed(tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(tmp_path):
    write(tmp_path, {"closed.txt": b""})
    (tmp_path / "closed.txt").chmod(0)
    with pytest.raises(BundleError, match="cannot read .*closed.txt"), packed(tmp_path):
        pass


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_100_000, "2.1 MB"), (5 << 30, "5.4 GB")]
)
def test_sizes_are_readable(size_bytes, text):
    assert readable_size(size_bytes) == text
