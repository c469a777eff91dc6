"""A bundle is an uncompressed tar: what it may hold, what is in it, and how it is unpacked."""

import hashlib
import os
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_controlplane.models import StoredFile

MAX_NAME_BYTES = 4096
MAX_PART_BYTES = 255


@dataclass
class _Seen:
    """What the members so far have put where."""

    files: dict[str, StoredFile] = field(default_factory=dict)
    links: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    total_bytes: int = 0


def inspect_bundle(path: Path, max_bytes: int, max_files: int) -> list[StoredFile]:
    """Check every member of a tar and list its files with their digests, sorted by name.

    Raises `ReportedError` (bundle.invalid) that names the first member which could write outside its folder,
    is neither a file, a folder nor a link, comes twice, or passes a limit.
    """
    seen = _Seen()
    try:
        with tarfile.open(path, mode="r:", errorlevel=2) as tar:
            for member in tar:
                _check_place(member, seen)
                _add(tar, member, seen)
                seen.total_bytes += member.size
                if seen.total_bytes > max_bytes or len(seen.files) + len(seen.folders) > max_files:
                    raise _refused(f"the bundle passes the limit of {max_bytes} bytes or {max_files} files")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise _refused(f"the bundle is not a readable uncompressed tar: {error}") from None
    return sorted(seen.files.values(), key=lambda file: file.name)


def _check_place(member: tarfile.TarInfo, seen: _Seen) -> None:
    """The member lies inside the bundle, at a place of its own, and not behind a link."""
    name = member.name
    path = PurePosixPath(name)
    parts = path.parts
    if not parts or path.is_absolute() or ".." in parts or str(path) != name or "\\" in name or not _is_text(name):
        raise _refused(f"the member {name!r} does not have a plain relative path")
    if name in seen.files or name in seen.links or (name in seen.folders and not member.isdir()):
        raise _refused(f"the member {name!r} comes twice")
    parents = {str(parent) for parent in path.parents}
    if parents & (seen.links | seen.files.keys()):
        raise _refused(f"the member {name!r} lies behind a link or a file")
    seen.folders |= parents - {"."}


def _is_text(name: str) -> bool:
    """Names are UTF-8 without control characters; what is not UTF-8 arrives with surrogates in it."""
    try:
        parts = [part.encode() for part in name.split("/")]
    except UnicodeEncodeError:
        return False
    return len(name.encode()) <= MAX_NAME_BYTES and max(map(len, parts)) <= MAX_PART_BYTES and name.isprintable()


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, seen: _Seen) -> None:
    name = member.name
    if member.isdir():
        seen.folders.add(name)
    elif member.isreg() and not member.issparse():
        seen.files[name] = StoredFile(name=name, sha256=_digest(tar, member), size_bytes=member.size)
    elif member.issym():
        _check_link(member)
        seen.links.add(name)
        target = hashlib.sha256(b"link to " + member.linkname.encode()).hexdigest()
        seen.files[name] = StoredFile(name=name, sha256=target, size_bytes=0)
    elif member.islnk() and member.linkname in seen.files and member.linkname not in seen.links:
        original = seen.files[member.linkname]
        seen.files[name] = StoredFile(name=name, sha256=original.sha256, size_bytes=original.size_bytes)
    else:
        raise _refused(f"the member {name!r} is not a file, a folder or a link to one in the bundle")


def _check_link(member: tarfile.TarInfo) -> None:
    """A link may climb only at its beginning, from its own folder: a '..' behind a link leads elsewhere."""
    target = PurePosixPath(member.linkname)
    climbs = next((at for at, part in enumerate(target.parts) if part != ".."), len(target.parts))
    depth = len(PurePosixPath(member.name).parent.parts)
    plain = bool(member.linkname) and not target.is_absolute() and _is_text(member.linkname)
    if not plain or climbs > depth or ".." in target.parts[climbs:]:
        raise _refused(f"the link {member.name!r} leads out of the bundle, to {member.linkname!r}")


def _digest(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    stream = tar.extractfile(member)
    if stream is None:
        raise _refused(f"the member {member.name!r} cannot be read")
    return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def unpack_bundle(path: Path, folder: Path) -> None:
    """Unpack a checked bundle; the 'data' filter checks again where links lead on this file system.

    Python 3.11 before 3.11.4 has no filters: there the check at the upload is the only one.
    """
    again: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(path, mode="r:") as tar:
            tar.extractall(folder, members=map(_plain, tar), **again)  # noqa: S202 - checked at the upload
    except (tarfile.TarError, OSError) as error:
        raise _refused(f"the bundle cannot be unpacked: {error}") from None


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The member as this user's own, with no rights but reading, writing and executing."""
    executable = member.isdir() or bool(member.mode & stat.S_IXUSR)
    member.mode = 0o755 if executable else 0o644
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    return member


def _refused(message: str) -> ReportedError:
    return ReportedError(
        ErrorReport(
            code=ErrorCode.BUNDLE_INVALID,
            message=message,
            advice="Pack the script's folder with `cerebras-cloud submit`, or leave the member out.",
        )
    )
