"""What the demo and the article's run share: a cluster of their own, driven by the public command line."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

COMMAND = Path(sys.executable).with_name("cerebras-cloud")


def run(*words: str | Path, folder: Path | None = None) -> int:
    """Run `cerebras-cloud` in this terminal and return its exit status."""
    return subprocess.run([COMMAND, *map(str, words)], cwd=folder, check=False).returncode


@contextmanager
def cluster(home: Path, options: Sequence[str] = ()) -> Iterator[None]:
    """A running cluster, stopped at the end. Where no sandbox can be made, says why and goes without."""
    started = _up(home, options)
    if started.returncode and "--sandbox none" in started.stderr:
        print(f"{started.stderr.strip()}\nThis is our own example: going on with --sandbox none.", flush=True)
        started = _up(home, [*options, "--sandbox", "none"])
    print(started.stdout + started.stderr, flush=True)
    try:
        if started.returncode:
            sys.exit(1)
        yield
    finally:
        run("down", "--home", home)


def _up(home: Path, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), "up", "--detach", "--home", str(home), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)
