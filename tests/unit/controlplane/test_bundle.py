import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_controlplane.models import StoredFile
from cerebras_controlplane.uploads.bundle import inspect_bundle, unpack_bundle

MIB = 1 << 20


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def write_tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for one in members:
            tar.addfile(one, io.BytesIO(b"x" * one.size))
    return path


def inspect(path: Path) -> list[StoredFile]:
    return inspect_bundle(path, max_bytes=MIB, max_files=10)


def refusal(path: Path) -> str:
    with pytest.raises(ReportedError) as refused:
        inspect(path)
    assert refused.value.report.code is ErrorCode.BUNDLE_INVALID
    return refused.value.report.message


def test_files_are_listed_with_their_digests(tmp_path: Path) -> None:
    bundle = write_tar(
        tmp_path / "b.tar",
        member("src", tarfile.DIRTYPE),
        member("src/model.py", size=3),
        member("latest", tarfile.SYMTYPE, "src/model.py"),
        member("same", tarfile.LNKTYPE, "src/model.py"),
        member("src/up", tarfile.SYMTYPE, "../latest"),
    )
    files = {file.name: file for file in inspect(bundle)}
    assert files["src/model.py"].sha256 == files["same"].sha256 == hashlib.sha256(b"xxx").hexdigest()
    assert set(files) == {"src/model.py", "latest", "same", "src/up"}
    unpack_bundle(bundle, tmp_path / "out")
    assert (tmp_path / "out" / "src" / "up").read_bytes() == b"xxx"


@pytest.mark.parametrize(
    "hostile",
    [
        [member("../x")],
        [member("/etc/passwd")],
        [member("a/../../x")],
        [member("a//b")],
        [member("./a")],
        [member("a\\b")],
        [member("a\nb")],
        [member("a" * 256)],
        [member("x", tarfile.SYMTYPE, "/etc/passwd")],
        [member("x", tarfile.SYMTYPE, "../x")],
        [member("d/x", tarfile.SYMTYPE, "../../x")],
        [member("d/e/up", tarfile.SYMTYPE, "../.."), member("x", tarfile.SYMTYPE, "d/e/up/../y")],
        [member("x", tarfile.SYMTYPE, "d"), member("x/y")],
        [member("x"), member("x/y")],
        [member("x"), member("x")],
        [member("x/y"), member("x", tarfile.SYMTYPE, ".")],
        [member("x", tarfile.LNKTYPE, "../y")],
        [member("x", tarfile.LNKTYPE, "/etc/passwd")],
        [member("s", tarfile.SYMTYPE, "t"), member("x", tarfile.LNKTYPE, "s")],
        [member("x", tarfile.CHRTYPE)],
        [member("x", tarfile.BLKTYPE)],
        [member("x", tarfile.FIFOTYPE)],
        [member("x", size=MIB + 1)],
        [member(f"f{number}") for number in range(11)],
    ],
    ids=lambda members: " ".join(f"{one.name}>{one.linkname}" for one in members[:2]),
)
def test_a_hostile_member_is_refused(tmp_path: Path, hostile: list[tarfile.TarInfo]) -> None:
    assert refusal(write_tar(tmp_path / "b.tar", *hostile))


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\x1f\x8b" + b"\0" * 600])
def test_what_is_no_tar_is_refused_or_empty(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(data)
    assert "not a readable" in refusal(path)


def test_a_cut_tar_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "b.tar", member("a", size=5000), member("b", size=5000))
    path.write_bytes(path.read_bytes()[:3000])
    assert "not a readable" in refusal(path)


names = st.text(st.sampled_from("ab./\\é\0 "), min_size=1, max_size=12)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.builds(member, names, kinds, names), max_size=5))
def test_what_is_accepted_stays_inside_when_unpacked(
    tmp_path_factory: pytest.TempPathFactory, members: list[tarfile.TarInfo]
) -> None:
    root = tmp_path_factory.mktemp("bundle")
    try:
        bundle = write_tar(root / "b.tar", *members)
    except (ValueError, TypeError):
        return  # such a name does not fit into a tar
    try:
        files = inspect(bundle)
    except ReportedError:
        return
    out = root / "inside" / "out"
    unpack_bundle(bundle, out)
    assert {path.name for path in root.iterdir()} <= {"b.tar", "inside"}
    for file in files:
        path = out / file.name
        assert path.is_symlink() or path.is_file()
        assert Path(os.path.realpath(path)).is_relative_to(out.resolve())


@pytest.mark.parametrize("has_filters", [True, False])
def test_unpacked_files_are_the_users_own_and_have_plain_rights(tmp_path, monkeypatch, has_filters):
    if not has_filters:  # as Python 3.11.0 to 3.11.3
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    script, text = member("run.sh", size=3), member("sub/notes.txt", size=3)
    script.mode, text.mode = 0o6777, 0o666
    script.uid = text.uid = 4242
    out = tmp_path / "out"
    unpack_bundle(write_tar(tmp_path / "bundle.tar", script, text), out)
    modes = {name: (out / name).stat().st_mode & 0o7777 for name in ("run.sh", "sub/notes.txt")}
    assert modes == {"run.sh": 0o755, "sub/notes.txt": 0o644}
    assert (out / "run.sh").stat().st_uid == os.getuid()
