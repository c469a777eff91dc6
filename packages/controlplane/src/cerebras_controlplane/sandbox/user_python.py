"""The user's Python: where it lives, and which versions it compiles with."""

import hashlib
import json
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_controlplane.artifacts.keys import MadeWith

PROBE_SECONDS = 60
CPU = Path("/proc/cpuinfo")
PROBE = """
import importlib.metadata, json, os, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
print(json.dumps({
    "places": [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), *sys.path],
    "compiler": version("cerebras-emulator-wafer"),
    "torch": version("torch"),
}))
"""


@dataclass(frozen=True)
class UserPython:
    """An interpreter, the places it reads from, and what of it is an ingredient of an input key."""

    executable: Path
    places: tuple[Path, ...]
    made_with: MadeWith


def probe_user_python(executable: Path, environment: dict[str, str]) -> UserPython:
    """Ask an interpreter about itself, without importing torch; raises `ReportedError` if it cannot answer."""
    try:
        answer = subprocess.run(
            [executable, "-c", PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=True,
        )
        found = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CONFIG_INVALID,
                message=f"the user's Python {executable} does not answer as a Python does: {error}",
                advice="Name the interpreter of an environment with cerebras_pytorch: `up --user-python`"
                " (CEREBRAS_USER_PYTHON).",
            )
        ) from None
    places = [executable, executable.resolve(), *(Path(place) for place in found["places"] if place)]
    return UserPython(
        executable=executable,
        places=_without_covered([place for place in places if place.exists()]),
        made_with=MadeWith(compiler=found["compiler"], torch=found["torch"], processor=processor()),
    )


def processor() -> str:
    """The processor's model and a digest of what it can do, which code that is generated here may use."""
    try:
        lines = CPU.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    features = fields.get("flags", fields.get("Features", ""))
    digest = hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:16]
    return f"{platform.machine()} {fields.get('model name', '')} {digest}"


def _without_covered(places: list[Path]) -> tuple[Path, ...]:
    """Places that no other place holds, outermost first."""
    kept: list[Path] = []
    for place in sorted(set(places), key=lambda path: len(path.parts)):
        if not any(place.is_relative_to(other) for other in kept):
            kept.append(place)
    return tuple(kept)
