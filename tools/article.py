"""`make article SCRIPT=... DATA=...`: runs the article's script unchanged, by hand and as a job.

Started by the main environment; the script itself runs under --user-python, which has torchvision. The IDX
files of DATA (plain or .gz) are laid where torchvision looks for MNIST, so that its download has nothing to do;
a training set smaller than MNIST's 60,000 is repeated up to that size.
"""

import argparse
import gzip
import shutil
import subprocess
import sys
from pathlib import Path

from local_cluster import cluster, run

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".demo" / "article"
MNIST_TRAINING_IMAGES = 60_000
IDX_SIZE_OFFSET = 4  # after the magic number comes the number of items, big-endian


def main() -> int:
    """Run the script both ways and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--user-python", type=Path, required=True)
    arguments = parser.parse_args()
    python = arguments.user_python.absolute()
    shutil.rmtree(WORK, ignore_errors=True)
    folder = WORK / "script"
    script = _lay_out(arguments.script, arguments.data, folder)
    print(f"--- by hand: python {script.name}", flush=True)
    if subprocess.run([python, script.name], cwd=folder, check=False).returncode:
        return 1
    print(f"\n--- as a job: cerebras-cloud submit {script.name}", flush=True)
    with cluster(WORK / "cluster", ["--user-python", str(python)]):
        return run("submit", script.name, "--home", WORK / "cluster", folder=folder)


def _lay_out(script: Path, data: Path, folder: Path) -> Path:
    """Copy the script and the data into a folder of their own."""
    raw = folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for source in sorted(data.glob("*-idx?-ubyte*")):
        content = source.read_bytes()
        content = gzip.decompress(content) if source.suffix == ".gz" else content
        content = _repeated(content) if source.name.startswith("train") else content
        (raw / source.name.removesuffix(".gz")).write_bytes(content)
    return Path(shutil.copy(script, folder))


def _repeated(content: bytes) -> bytes:
    """An IDX file with its items repeated up to the size of MNIST's training set."""
    dimensions = content[3]
    header_bytes = 4 + 4 * dimensions
    items = int.from_bytes(content[IDX_SIZE_OFFSET : IDX_SIZE_OFFSET + 4], "big")
    times = -(-MNIST_TRAINING_IMAGES // items)
    body = content[header_bytes:]
    wanted_bytes = len(body) // items * MNIST_TRAINING_IMAGES
    size = MNIST_TRAINING_IMAGES.to_bytes(4, "big")
    return content[:IDX_SIZE_OFFSET] + size + content[8:header_bytes] + (body * times)[:wanted_bytes]


if __name__ == "__main__":
    sys.exit(main())
