"""Trains a GPT-2 on Shakespeare's plays, one character at a time.

Runs by hand (`python train.py`) and as a job (`cerebras-cloud submit train.py --config run.yaml --root ..`: the
data lie beside this folder). `configs/` holds the published sizes.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

import cerebras_pytorch as cbt

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for example_data, which the examples share

from example_data import NextCharacters  # noqa: E402
from model import GPT2, NextTokenLoss  # noqa: E402


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
        model = GPT2(**sizes)
    settings = params["optimizer"]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings["learning_rate"], betas=(0.9, 0.95), weight_decay=settings["weight_decay"]
    )
    dataset = NextCharacters(sizes["length"])
    loader = torch.utils.data.DataLoader(dataset, params["train_input"]["batch_size"], shuffle=True)
    return Parts(cbt.nn.DataParallel(model), NextTokenLoss(), optimizer, loader)


def main() -> None:
    with cbt.init_context(config=HERE / "run.yaml") as context:
        params = context.params
        model, criterion, optimizer, loader = build(params)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=params["optimizer"]["learning_rate"],
            total_steps=params["runconfig"]["max_steps"],
            cycle_momentum=False,
        )
        train_loader = cbt.utils.data.DataLoader(loader)
        precision = cbt.amp.MixedPrecision(params["model"].get("fp16_type", "float32"))
        compiled_model = cbt.compile(model, optimizer, criterion, train_loader, mixed_precision=precision)

        model.train()
        for _ in range(params["train_input"]["epochs"]):
            for tokens, following in train_loader:
                optimizer.zero_grad()
                loss = criterion(compiled_model(tokens), following)
                loss.backward()
                optimizer.step()
                scheduler.step()


if __name__ == "__main__":
    main()
