"""`make bench`: ratios against what a user would use instead, from medians of runs interleaved in one process.

Above 1 means faster than the alternative. This is no test: nothing depends on a time.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.run_directory import RunDirectory
from cerebras_pytorch.checkpoints import state_dict
from cerebras_pytorch.log import logger
from cerebras_pytorch.process import Process, set_current_process

BATCH, ROUNDS, STEPS_A_ROUND = 64, 15, 4
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


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, criterion: nn.Module) -> Callable[[], None]:
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))

    def run() -> None:
        for _ in range(STEPS_A_ROUND):
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()

    return run


def bench_steps() -> None:
    eager = Convolutions()
    eager_step = training_step(eager, torch.optim.Adam(eager.parameters()), nn.CrossEntropyLoss())
    with cbt.init_context() as context:
        model, criterion = Convolutions(), nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters())
        batch = (torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,)))
        started = time.perf_counter()
        compiled = cbt.compile(model, optimizer, criterion, cbt.utils.data.DataLoader([batch]))
        compile_seconds = time.perf_counter() - started
        ours, theirs = median_seconds(training_step(compiled, optimizer, criterion), eager_step)
        context.session = None
    print(f"training step, MNIST network, float32: {theirs / ours:.2f} of eager PyTorch")
    print(f"capture, plan, report and write: {compile_seconds:.1f} s")


def bench_checkpoint(folder: Path) -> None:
    """Reading a checkpoint, digests included, against torch.load of the same tensors."""
    from safetensors.torch import save_file

    from cerebras_contract.checkpoints import CheckpointManifest
    from cerebras_contract.digests import sha256_of_file

    tensors = {f"{number}": torch.randn(STATE_ELEMENTS // 4) for number in range(4)}
    torch.save(tensors, folder / "plain.pt")
    save_file(tensors, folder / "model.safetensors")
    digests = {"model.safetensors": sha256_of_file(folder / "model.safetensors")}
    manifest = CheckpointManifest(
        step=1, artifact_key="", created_at=0, optimizer="", hyperparameters=[], digests=digests
    )
    (folder / "checkpoint.json").write_text(manifest.model_dump_json())

    def load_plain() -> None:
        sha256_of_file(folder / "plain.pt")
        torch.load(folder / "plain.pt", weights_only=True)

    ours, theirs = median_seconds(lambda: state_dict(folder) and None, load_plain)
    print(f"read a checkpoint of {STATE_ELEMENTS * 4 / 1e6:.0f} MB: {theirs / ours:.2f} of sha256 and torch.load")


def main() -> None:
    logger.disabled = True
    with tempfile.TemporaryDirectory() as folder:
        set_current_process(Process(RunDirectory(Path(folder))))
        bench_steps()
        bench_checkpoint(Path(folder))


if __name__ == "__main__":
    main()
