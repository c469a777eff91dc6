"""Packs a folder into a bundle: a tar that is the same, byte for byte, wherever the same files are packed."""

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cerebras_cloud.errors import BundleError
from cerebras_cloud.ignore import IGNORE_FILE, IgnoreRules

LIMIT_BYTES = 2 << 30
BIGGEST_SHOWN = 10


@dataclass(frozen=True)
class Bundle:
    """A packed folder. `tar` is an open temporary file; `names` are paths in the bundle."""

    tar: BinaryIO
    sha256: str
    names: frozenset[str]
    files: int
    content_bytes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Member:
    """Something to pack. `target` is where a link points, relative to the link's folder."""

    name: str
    path: Path
    kind: bytes
    size_bytes: int = 0
    target: str = ""


@dataclass
class _Scan:
    """What is found in a folder: `root` is its real path."""

    root: Path
    members: list[_Member] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@contextmanager
def packed(folder: Path, limit_bytes: int = LIMIT_BYTES) -> Iterator[Bundle]:
    """Pack `folder`; the bundle's file lives as long as the context.

    Raises `BundleError`, which names the path, for a file that cannot be read or changes meanwhile, a link
    that leaves the folder, a name that is not UTF-8, and contents above `limit_bytes`.
    """
    scan = _Scan(folder.resolve())
    _scan_folder(scan, scan.root, "", IgnoreRules.default())
    content_bytes = _check_size(scan.members, limit_bytes)
    with tempfile.TemporaryFile(prefix="cerebras-bundle-") as file:
        _write_tar(scan.members, file)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        yield Bundle(
            tar=file,
            sha256=sha256,
            names=frozenset(member.name for member in scan.members),
            files=sum(member.kind == tarfile.REGTYPE for member in scan.members),
            content_bytes=content_bytes,
            warnings=tuple(scan.warnings),
        )


def _scan_folder(scan: _Scan, folder: Path, path: str, rules: IgnoreRules) -> None:
    """Collect what travels below `folder`, sorted by name; `path` is its path in the bundle, with a slash."""
    rules = rules.entering(folder, path)
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from None
    # A folder whose contents are all ignored leaves no trace; else the digest would depend on ignored things.
    if not entries and path:
        scan.members.append(_Member(path.removesuffix("/"), folder, tarfile.DIRTYPE))
    for entry in entries:
        name = path + entry.name
        if not rules.ignore(entry, name):
            _scan_entry(scan, entry, _checked(name), rules)


def _scan_entry(scan: _Scan, entry: os.DirEntry[str], name: str, rules: IgnoreRules) -> None:
    path = Path(entry.path)
    if entry.is_symlink():
        _scan_link(scan, path, name)
    elif entry.is_dir():
        _scan_folder(scan, path, f"{name}/", rules)
    elif entry.is_file():
        try:
            size_bytes = entry.stat(follow_symlinks=False).st_size
        except OSError as error:
            raise _unreadable(path, error) from None
        scan.members.append(_Member(name, path, tarfile.REGTYPE, size_bytes=size_bytes))
    else:
        scan.warnings.append(f"{name} is left out: it is neither a file nor a folder")


def _scan_link(scan: _Scan, path: Path, name: str) -> None:
    """Keep a link that stays in the root, written relative, so that it holds wherever it is unpacked."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # nothing there, a closed folder on the way, or a loop
        scan.warnings.append(f"{name} is left out: its link to {path.readlink()} leads nowhere")
        return
    if not target.is_relative_to(scan.root):
        raise BundleError(
            f"the link {name} leaves the folder: it points to {target}. "
            f"Copy what it points to into the folder, or leave the link out with a line in {IGNORE_FILE}."
        )
    relative = os.path.relpath(target, path.parent)
    scan.members.append(_Member(name, path, tarfile.SYMTYPE, target=_checked(relative)))


def _checked(name: str) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise BundleError(f"the file name {shown!r} is not UTF-8: rename the file, or ignore it.") from None
    return name


def _check_size(members: list[_Member], limit_bytes: int) -> int:
    """The size of all contents in bytes, where it is within the limit."""
    total_bytes = sum(member.size_bytes for member in members)
    if total_bytes <= limit_bytes:
        return total_bytes
    biggest = sorted(members, key=lambda member: -member.size_bytes)[:BIGGEST_SHOWN]
    lines = [f"  {readable_size(member.size_bytes):>10}  {member.name}" for member in biggest]
    raise BundleError(
        f"the folder has {readable_size(total_bytes)}, more than the {readable_size(limit_bytes)} that may "
        f"be uploaded. Leave files out with lines in {IGNORE_FILE}. The biggest:\n" + "\n".join(lines)
    )


def _write_tar(members: list[_Member], file: BinaryIO) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            if member.kind == tarfile.REGTYPE:
                _write_file(tar, member)
            else:
                tar.addfile(_header(member, 0o755 if member.kind == tarfile.DIRTYPE else 0o777))


def _write_file(tar: tarfile.TarFile, member: _Member) -> None:
    try:
        with member.path.open("rb") as content:
            before = os.fstat(content.fileno())
            header = _header(member, 0o755 if before.st_mode & stat.S_IXUSR else 0o644)
            header.size = before.st_size
            tar.addfile(header, content)
            after = os.fstat(content.fileno())
    except OSError as error:
        raise _unreadable(member.path, error) from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _changed(member.path)


def _header(member: _Member, mode: int) -> tarfile.TarInfo:
    """A member without what differs between machines: times, owners, the mode but for the executable bit."""
    header = tarfile.TarInfo(member.name)
    header.type = member.kind
    header.mode = mode
    header.linkname = member.target
    return header


def _unreadable(path: Path, error: OSError) -> BundleError:
    if isinstance(error, FileNotFoundError) or error.errno is None:  # tarfile's, for a file cut short
        return _changed(path)
    return BundleError(f"cannot read {path}: {error.strerror or error}. Ignore it, or make it readable.")


def _changed(path: Path) -> BundleError:
    return BundleError(f"{path} changed while it was packed: submit again when nothing writes to the folder.")


def readable_size(size_bytes: int) -> str:
    """A size for people: 12 B, 3.4 kB, 2.1 MB, 1.0 GB."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
