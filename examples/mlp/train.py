"""Trains a plain network of fully connected layers with batch normalisation on handwritten digits.

Runs by hand (`python train.py`) and as a job (`cerebras-cloud submit train.py --config run.yaml --root ..`: the
data lie beside this folder). `configs/` holds a published size.
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import cerebras_pytorch as cbt

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for example_data, which the examples share

from example_data import digits  # noqa: E402

PIXELS, CLASSES = 28 * 28, 10


class MLP(nn.Module):
    """Images (batch, 1, 28, 28) to logits (batch, 10), through hidden layers of these widths."""

    def __init__(self, hidden: list[int]) -> None:
        super().__init__()
        widths = [PIXELS, *hidden]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU())
            for before, after in pairwise(widths)
        )
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.flatten(1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Parts(NamedTuple):
    model: torch.nn.Module
    criterion: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loader: torch.utils.data.DataLoader


def build(params: dict[str, Any]) -> Parts:
    """What is trained, from the sections of run.yaml. On `device: meta` the model has shapes but no values."""
    torch.manual_seed(params["runconfig"].get("seed", 0))
    sizes = {name: value for name, value in params["model"].items() if name not in ("device", "fp16_type")}
    with torch.device(params["model"].get("device", "cpu")):
        model = MLP(**sizes)
    settings = params["optimizer"]
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"], momentum=0.9, nesterov=True)
    loader = torch.utils.data.DataLoader(digits("train"), params["train_input"]["batch_size"], shuffle=True)
    return Parts(cbt.nn.DataParallel(model), nn.CrossEntropyLoss(), optimizer, loader)


def main() -> None:
    with cbt.init_context(config=HERE / "run.yaml") as context:
        params = context.params
        model, criterion, optimizer, loader = build(params)
        train_loader = cbt.utils.data.DataLoader(loader)
        precision = cbt.amp.MixedPrecision(params["model"].get("fp16_type", "float32"))
        compiled_model = cbt.compile(model, optimizer, criterion, train_loader, mixed_precision=precision)

        model.train()
        for _ in range(params["train_input"]["epochs"]):
            for images, labels in train_loader:
                optimizer.zero_grad()
                loss = criterion(compiled_model(images), labels)
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
