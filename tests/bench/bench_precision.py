"""What rounding costs: a training step in half precision against float32, from medians of runs interleaved.

The times are those of the processor, of all threads, so that what else the machine does counts little. This is no test.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_training import Convolutions
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.run_directory import RunDirectory
from cerebras_pytorch.amp import MixedPrecision
from cerebras_pytorch.log import logger
from cerebras_pytorch.process import Process, set_current_process

ROUNDS, STEPS_A_ROUND = 7, 2
WIDTH, TOKENS, VOCABULARY, LAYERS = 256, 128, 1000, 6


class Transformer(nn.Module):
    """5 million parameters: six blocks of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


class TokenLoss(nn.Module):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def convolutions() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    return Convolutions(), nn.CrossEntropyLoss(), (torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))


def transformer() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    tokens = torch.randint(0, VOCABULARY, (8, TOKENS))
    return Transformer(), TokenLoss(), (tokens, tokens)


def step_of(make: Callable[[], tuple], precision: MixedPrecision | None, folder: Path) -> Callable[[], None]:
    """A few training steps from an artifact of their own."""
    set_current_process(Process(RunDirectory(folder)))
    with cbt.init_context() as context:
        model, criterion, (inputs, target) = make()
        optimizer = torch.optim.Adam(model.parameters())
        loader = cbt.utils.data.DataLoader([(inputs, target)])
        compiled = cbt.compile(model, optimizer, criterion, loader, mixed_precision=precision)
        context.session = None
        kept = context.put_back.pop_all()  # the compiled parts stay in place after the context

    def run() -> None:
        for _ in range(STEPS_A_ROUND):
            optimizer.zero_grad()
            criterion(compiled(inputs), target).backward()
            optimizer.step()

    run.kept = kept  # type: ignore[attr-defined]
    return run


def compare(name: str, make: Callable[[], tuple], folder: Path) -> None:
    choices = {"float32": None}
    choices |= {f: MixedPrecision(f, 1.0 if f == "bfloat16" else 1024.0) for f in ("float16", "bfloat16", "cbfloat16")}
    steps = {choice: step_of(make, precision, folder / name / choice) for choice, precision in choices.items()}
    times: dict[str, list[float]] = {choice: [] for choice in steps}
    for _ in range(ROUNDS):
        for choice, step in steps.items():
            started = time.process_time()
            step()
            times[choice].append(time.process_time() - started)
    medians = {choice: statistics.median(taken) for choice, taken in times.items()}
    for choice in list(medians)[1:]:
        print(f"training step, {name}, {choice}: {medians[choice] / medians['float32']:.2f} times float32's")


def main() -> None:
    logger.disabled = True
    with tempfile.TemporaryDirectory() as folder:
        compare("MNIST network", convolutions, Path(folder))
        compare("transformer of 5 million parameters", transformer, Path(folder))


if __name__ == "__main__":
    main()
