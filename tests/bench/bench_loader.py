"""Milliseconds a batch of the loader against the torch loader in it, and what prefetch is worth. This is no test."""

import os
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import torch
from bench_training import Convolutions
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, TensorDataset

import cerebras_pytorch as cbt
from cerebras_pytorch.data.position import Feed
from cerebras_pytorch.data.prefetch import PrefetchedFeed

BATCH, BATCHES, ROUNDS = 64, 100, 5
WORK = 220
"""Of the slow dataset: preparing a batch takes about as long as a step of the network."""


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take a while to prepare."""

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.full((1, 28, 28), float(index % 7))
        for _ in range(WORK):
            image = image.sin()
        return image, torch.tensor(index % 10)


def milliseconds(batches: Iterable[Any]) -> float:
    started = time.perf_counter()
    count = sum(1 for _ in batches)
    return 1000 * (time.perf_counter() - started) / count


def cost_of_a_batch() -> None:
    data = TensorDataset(torch.randn(BATCH * BATCHES, 1, 28, 28), torch.randint(0, 10, (BATCH * BATCHES,)))
    source = TorchLoader(data, BATCH, shuffle=True)
    feed, ahead = Feed(source, 0, [], None), PrefetchedFeed(Feed(source, 0, [], None), 2)
    times: dict[str, list[float]] = {"torch loader": [], "in cbt's": [], "prefetched": []}
    for number in range(ROUNDS):
        for name, batches in zip(times, (source, feed.epoch(number), ahead.epoch(number)), strict=True):
            times[name].append(milliseconds(batches))
    ahead.end()
    shown = ", ".join(f"{name} {min(taken):.2f} ms" for name, taken in times.items())
    print(f"a batch of {BATCH} samples: {shown}")


def seconds_a_step(prefetch_batches: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with cbt.init_context() as context:
            settings = cbt.utils.config.RunConfig(prefetch_batches=prefetch_batches, log_steps=1000, max_steps=60)
            context.set_run_config(settings)
            model = Convolutions()
            optimizer, criterion = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()
            loader = cbt.utils.data.DataLoader(TorchLoader(Slow(), BATCH))
            compiled = cbt.compile(model, optimizer, criterion, loader)
            started = 0.0
            for number, (images, labels) in enumerate(loader):
                started = started if number else time.perf_counter()
                compiled.train_step(images, labels)
            seconds = (time.perf_counter() - started) / number
        os.chdir("/")
    return seconds


def main() -> None:
    cost_of_a_batch()
    torch.set_num_threads(1)  # one processor trains, the other one prepares
    here, ahead = seconds_a_step(0), seconds_a_step(2)
    print(
        f"a step with a slow dataset: {1000 * here:.0f} ms, prefetched {1000 * ahead:.0f} ms: {here / ahead:.2f} of it"
    )


if __name__ == "__main__":
    main()
