"""Weight streaming against resident execution of the same model; and a model of a billion parameters in 4 GiB.

Two processes train by turns, so that what else the machine does falls on both; the store is in the page cache. Above 1
means faster than resident. This is no test: nothing depends on a time.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from turns import Worker, seconds_a_step, work

import cerebras_pytorch as cbt

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "gpt2"))
from model import GPT2, NextTokenLoss

ROUNDS, STEPS_A_ROUND = 9, 2


class Size(NamedTuple):
    """A GPT-2 and its batch."""

    vocabulary: int
    length: int
    width: int
    layers: int
    batch: int


SIZES = {
    "weights dominate": Size(1024, 32, 512, 8, batch=2),
    "compute dominates": Size(1024, 128, 512, 8, batch=16),
    "a billion parameters": Size(8192, 64, 2048, 20, batch=2),
}


class Trainer:
    """Trains in the current directory, in one of the modes."""

    def __init__(self, context: cbt.Context, mode: str, size: Size, device: str, system: str = "cs-2") -> None:
        context.set_run_config(cbt.utils.config.RunConfig(execution_mode=mode, log_steps=1000, system=system))
        torch.manual_seed(0)
        with torch.device(device):
            model = GPT2(size.vocabulary, size.length, size.width, size.layers, heads=size.width // 64, dropout=0.0)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(0, size.vocabulary, (size.batch, size.length + 1))
        batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self._loader = cbt.utils.data.DataLoader([batch])
        self._compiled = cbt.compile(cbt.nn.DataParallel(model), optimizer, NextTokenLoss(), self._loader)

    def steps(self, count: int) -> list[float]:
        return [self._compiled.train_step(*batch).item() for _ in range(count) for batch in self._loader]


def train(mode: str, size: Size) -> None:
    """Be a process that trains in a mode."""
    with cbt.init_context() as context:
        trainer = Trainer(context, mode, size, "cpu")
        work(trainer.parameters, lambda: trainer.steps(1))


def compare(size: str, folder: Path) -> None:
    modes = ("weight_streaming", "pipelined")
    workers = [Worker([__file__, "--mode", mode, "--size", size], folder / size / mode) for mode in modes]
    streamed, resident = seconds_a_step(workers, ROUNDS, STEPS_A_ROUND)
    shape = SIZES[size]
    print(
        f"weight streaming, GPT-2 of {workers[0].parameters / 1e6:.0f} million parameters, batch {shape.batch} x"
        f" {shape.length}, {size}: {resident / streamed:.2f} of resident ({streamed:.2f} s a step)"
    )


def billion(mode: str) -> None:
    """Two steps from the `meta` device on; the losses and the most memory that the process ever held.

    Pipelined, where everything is resident, that takes 20 GB here, and a system with more memory than there is.
    """
    device, system = ("meta", "cs-2") if mode == "weight_streaming" else ("cpu", "roomy.yaml")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        os.chdir(folder)
        Path("roomy.yaml").write_text("like: cs-2\nname: roomy\nsram_bytes_per_pe: 262144\n", encoding="utf-8")
        with cbt.init_context() as context:
            trainer = Trainer(context, mode, SIZES["a billion parameters"], device, system)
            started = time.perf_counter()
            losses = trainer.steps(2)
            seconds = time.perf_counter() - started
        os.chdir("..")
    status = Path("/proc/self/status").read_text().splitlines()
    peak_kibibytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(
        f"{mode}: {trainer.parameters / 1e9:.2f} billion parameters with Adam, two steps in {seconds:.0f} s,"
        f" losses {[loss.hex() for loss in losses]}, peak memory {peak_kibibytes / (1 << 20):.2f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="weight_streaming")
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--billion", action="store_true", help="train a model of a billion parameters")
    arguments = parser.parse_args()
    if arguments.billion:
        billion(arguments.mode)
    elif arguments.size:
        train(arguments.mode, SIZES[arguments.size])
    else:
        with tempfile.TemporaryDirectory() as folder:
            for size in ("weights dominate", "compute dominates"):
                compare(size, Path(folder))


if __name__ == "__main__":
    main()
