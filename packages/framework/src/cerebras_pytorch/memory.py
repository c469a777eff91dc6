"""How much memory this process uses, and how much it could still have. Linux only: elsewhere nothing is known."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cerebras_pytorch.settings import GIBIBYTE

KIBIBYTE = 1 << 10
LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc takes; larger pieces go back to the system at once
NEVER_TRIMMED_BYTES = (1 << 31) - 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
NO_LIMIT_BYTES = 1 << 60
"""Groups of version 1 write a number near 2^63 where there is no limit."""

PROCESSES = Path("/proc")
STATUS = Path("/proc/self/status")
PEAK_RESET = Path("/proc/self/clear_refs")
MACHINE = Path("/proc/meminfo")
GROUPS = Path("/proc/self/cgroup")
GROUP_FILES = Path("/sys/fs/cgroup")


def used_bytes() -> int | None:
    """What only this process holds, in memory or swapped out. Pages of files do not count: they can be read again."""
    fields = _fields(STATUS)
    return sum(fields.get(name, 0) for name in ("RssAnon", "RssShmem", "VmSwap")) if "RssAnon" in fields else None


def descendants() -> list[int]:
    """The processes that this one has started, and those that they have."""
    found = [os.getpid()]
    for process in found:  # grows meanwhile
        for path in PROCESSES.glob(f"{process}/task/*/children"):
            with suppress(OSError):  # it has ended
                found += map(int, path.read_text(encoding="ascii").split())
    return found[1:]


def used_by_descendants_bytes() -> int:
    """What the processes hold that this one has started, such as a C++ compiler."""
    fields = [_fields(PROCESSES / str(process) / "status") for process in descendants()]
    return sum(one.get("RssAnon", 0) + one.get("VmSwap", 0) for one in fields)


class PeakMemory:
    """The most that this process has held in memory since this was made, mapped pages included.

    `bound_bytes` is what it may grow by; 0: nothing is known of that. Of what it holds at first, `moved_bytes` are
    moved to where they count as grown.
    """

    def __init__(self, bound_bytes: int, moved_bytes: int = 0) -> None:
        self.bound_bytes = bound_bytes
        with suppress(OSError):  # not Linux, or not allowed: then the peak is that of the whole process
            PEAK_RESET.write_text("5", encoding="ascii")
        resident = _fields(STATUS).get("VmRSS")
        self._before = None if resident is None else resident - moved_bytes

    @property
    def grown_bytes(self) -> int | None:
        """What it has grown by at most; None where that is not known."""
        peak = _fields(STATUS).get("VmHWM")
        return None if peak is None or self._before is None else max(peak - self._before, 0)

    @property
    def is_passed(self) -> bool:
        """Whether it has grown by more than the bound."""
        return bool(self.bound_bytes) and (self.grown_bytes or 0) > self.bound_bytes

    def __str__(self) -> str:
        grown = self.grown_bytes
        shown = "unknown" if grown is None else f"{grown / GIBIBYTE:.2f} GiB"
        bound = f", bound by the plan to {self.bound_bytes / GIBIBYTE:.2f} GiB" if self.bound_bytes else ""
        return f"{shown} beyond what was there before training{bound}"


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let the C library keep what is freed inside, for what is asked for next; give it back at the end.

    A step frees its activations and asks for them again. Handing the pages back to the system in between, and getting
    them anew, takes a quarter of a step of a small network (`make bench`). With glibc only: elsewhere nothing changes.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
    library.mallopt(M_TRIM_THRESHOLD, NEVER_TRIMMED_BYTES)
    try:
        yield
    finally:
        library.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_KEPT_BYTES)  # what glibc comes to by itself
        library.malloc_trim(0)


def free_bytes() -> int | None:
    """What the machine and every control group around this process could still give, swap included."""
    fields = _fields(MACHINE)
    if "MemAvailable" not in fields:
        return None
    return min(fields["MemAvailable"] + fields.get("SwapFree", 0), *_free_in_groups(), NO_LIMIT_BYTES)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the system has refused memory, to Python or to PyTorch."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def _fields(path: Path) -> dict[str, int]:
    """Lines such as `VmSwap:   12 kB`, as bytes; empty where the file cannot be read."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {line[0].rstrip(":"): int(line[1]) * KIBIBYTE for line in words}


def _free_in_groups() -> Iterator[int]:
    """What each control group that has a limit has left. Cached files do not count as used."""
    for folder, limit_file, usage_file, cached in _group_folders():
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is not None and usage is not None and limit < NO_LIMIT_BYTES:
            yield max(limit - usage + _statistic(folder / "memory.stat", cached), 0)


def _group_folders() -> Iterator[tuple[Path, str, str, str]]:
    """Folders of the process's memory groups up to the root, with the names of their files, of both versions.

    Inside a container the root is the container's own group, whatever path is written.
    """
    try:
        lines = GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = Path(path.lstrip("/"))
        if not controllers:
            files, root = ("memory.max", "memory.current", "inactive_file"), GROUP_FILES
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = GROUP_FILES / "memory"
        else:
            continue
        for folder in (root / relative, *(root / parent for parent in relative.parents)):
            yield folder, *files


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, or "max"
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return next((int(value) for key, value in pairs if key == name), 0)
    except (OSError, ValueError):
        return 0
