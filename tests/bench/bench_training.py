"""`make bench`: checkpoints against torch.save and torch.load, from medians of runs interleaved in one process.

Above 1 means faster than the alternative. This is no test: nothing depends on a time.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from cerebras_contract.digests import sha256_of_file
from cerebras_contract.run_directory import RunDirectory
from cerebras_pytorch.checkpoints import read_checkpoint
from cerebras_pytorch.checkpoints.folder import bring_to_disk
from cerebras_pytorch.checkpoints.save import Snapshot, write_checkpoint
from cerebras_pytorch.log import logger
from cerebras_pytorch.process import Process, set_current_process

ROUNDS = 15
STATE_ELEMENTS = 8 << 20


class Convolutions(nn.Module):
    """The network of the MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.pool, self.relu = nn.MaxPool2d(2), nn.ReLU()
        self.fc1, self.fc2 = nn.Linear(64 * 49, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        return self.fc2(self.relu(self.fc1(x.flatten(1))))


def median_seconds(*alternatives: Callable[[], None]) -> list[float]:
    """Median seconds of each, run in turn so that what else the machine does falls on all of them."""
    times: list[list[float]] = [[] for _ in alternatives]
    for _ in range(ROUNDS):
        for taken, run in zip(times, alternatives, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in times]


def bench_checkpoint(folder: Path) -> None:
    """Writing and reading a checkpoint against torch.save and torch.load of the same tensors."""
    tensors = {f"{number}": torch.randn(STATE_ELEMENTS // 4) for number in range(4)}
    target = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    ours, plain = folder / "step_1", folder / "plain.pt"
    size = f"a checkpoint of {STATE_ELEMENTS * 4 / 1e6:.0f} MB"

    def save_plain() -> None:
        torch.save(tensors, plain)
        bring_to_disk(plain)
        sha256_of_file(plain)

    def load_ours() -> None:
        for name, tensor in read_checkpoint(ours).model.items():
            target[name].copy_(tensor)

    def load_plain() -> None:
        for name, tensor in torch.load(plain, weights_only=True).items():
            target[name].copy_(tensor)

    snapshot = Snapshot(step=1, artifact_key="", model=tensors)
    saved, saved_plain = median_seconds(lambda: write_checkpoint(ours, snapshot), save_plain)
    print(f"save {size}: {saved_plain / saved:.2f} of torch.save, fsync and sha256")
    hashed = lambda: sha256_of_file(plain) and None  # noqa: E731
    loaded, loaded_plain, hash_seconds = median_seconds(load_ours, load_plain, hashed)
    with_hash = (loaded_plain + hash_seconds) / loaded
    print(f"load {size}: {loaded_plain / loaded:.2f} of torch.load, {with_hash:.2f} of sha256 and torch.load")


def main() -> None:
    logger.disabled = True
    with tempfile.TemporaryDirectory() as folder:
        set_current_process(Process(RunDirectory(Path(folder))))
        bench_checkpoint(Path(folder))


if __name__ == "__main__":
    main()
