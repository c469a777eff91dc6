"""Steps a second against eager PyTorch and torch.compile: three models, by turns. This is no test."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_training import Convolutions
from torch import nn
from turns import Worker, seconds_a_step, work

import cerebras_pytorch as cbt

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WAYS = ("eager", "interpret", "interpret, whole step", "torch.compile", "inductor", "inductor, whole step")
ROUNDS, STEPS = 9, 3
SHORT_STEPS = 15
"""Of a model whose step takes so little that three of them say nothing."""

Made = tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]


def mnist() -> Made:
    return Convolutions(), nn.CrossEntropyLoss(), (torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))


def resnet18() -> Made:
    sys.path.insert(0, str(EXAMPLES / "resnet"))
    from model import ResNet

    model = ResNet(3, 64, [2, 2, 2, 2], bottleneck=False, classes=10, small_images=True)
    return model, nn.CrossEntropyLoss(), (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))


def gpt2() -> Made:
    sys.path.insert(0, str(EXAMPLES / "gpt2"))
    from model import GPT2, NextTokenLoss

    tokens = torch.randint(0, 1024, (8, 129))
    model = GPT2(vocabulary_size=1024, length=128, width=384, layers=6, heads=6)
    return model, NextTokenLoss(), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


MODELS: dict[str, Callable[[], Made]] = {
    "MNIST network": mnist,
    "ResNet-18 on 32x32": resnet18,
    "6-layer GPT-2": gpt2,
}


def train(name: str, way: str) -> None:
    """Be a process that trains a model in one of the ways."""
    torch.manual_seed(0)
    model, criterion, batch = MODELS[name]()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    if way in ("eager", "torch.compile"):
        forward = model if way == "eager" else torch.compile(model)
        step = one_step(forward, criterion, optimizer, batch)
        step()
        work(parameters, step)
    with cbt.init_context() as context:
        codegen, _, whole = way.partition(", ")
        context.set_run_config(
            cbt.utils.config.RunConfig(codegen=codegen, execution_mode="pipelined", log_steps=10_000)
        )
        loader = cbt.utils.data.DataLoader([batch])
        compiled = cbt.compile(model, optimizer, criterion, loader)
        plain = one_step(compiled, criterion, optimizer, batch)

        def step() -> None:
            for inputs, target in loader:
                if whole:
                    compiled.train_step(inputs, target)
                else:
                    plain()

        step()
        work(parameters, step)


def one_step(model: Any, criterion: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Callable[[], None]:
    inputs, target = batch

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(inputs), target).backward()
        optimizer.step()

    return step


def compare(name: str, folder: Path) -> None:
    workers = [Worker([__file__, "--model", name, "--way", way], folder / name / way) for way in WAYS]
    steps = SHORT_STEPS if name == "MNIST network" else STEPS
    seconds = dict(zip(WAYS, seconds_a_step(workers, ROUNDS, steps), strict=True))
    shown = ", ".join(f"{way} {1000 * taken:.1f} ms" for way, taken in seconds.items())
    print(f"a step of the {name}: {shown}")
    for way, than in (("interpret", "eager"), ("interpret, whole step", "eager"), ("inductor", "torch.compile"),
                      ("inductor, whole step", "torch.compile"), ("inductor, whole step", "eager"),
                      ("interpret, whole step", "interpret"), ("inductor, whole step", "inductor")):  # fmt: skip
        print(f"  {way}: {seconds[than] / seconds[way]:.2f} of {than}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--way", choices=WAYS)
    arguments = parser.parse_args()
    if arguments.way:
        train(arguments.model, arguments.way)
    with tempfile.TemporaryDirectory() as folder:
        for name in [arguments.model] if arguments.model else MODELS:
            compare(name, Path(folder))


if __name__ == "__main__":
    main()
