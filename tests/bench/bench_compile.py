"""`make bench`, second half: what compiling costs, against a cold torch.compile, and as the model grows.

Each measurement is a process of its own, so that nothing is warm. This is no test: nothing depends on a time.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

GPT2 = {"vocabulary_size": 50257, "length": 256, "width": 768, "layers": 12, "heads": 12}
GPT3 = {"vocabulary_size": 50257, "length": 2048, "width": 12288, "layers": 96, "heads": 96}
GPT2_BATCH, GPT3_BATCH, MNIST_BATCH = 4, 1536, 64


def mnist() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    sys.path.insert(0, str(EXAMPLES / "mnist"))
    from train import DigitClassifier

    images, labels = torch.randn(MNIST_BATCH, 1, 28, 28), torch.randint(0, 10, (MNIST_BATCH,))
    return DigitClassifier(width=128, dropout=0.25), nn.CrossEntropyLoss(), (images, labels)


def gpt(sizes: dict[str, int], batch: int, device: str = "cpu") -> tuple[nn.Module, nn.Module, Any]:
    sys.path.insert(0, str(EXAMPLES / "gpt2"))
    from model import GPT2 as Model
    from model import NextTokenLoss

    with torch.device(device):
        model = Model(**sizes)
    tokens = torch.zeros(batch, sizes["length"], dtype=torch.long)
    return model, NextTokenLoss(), (tokens, tokens)


MODELS = {"mnist": mnist, "gpt2": lambda: gpt(GPT2, GPT2_BATCH)}


def ours(name: str) -> dict[str, float]:
    """Capture, plan, report and write; then the same again, which is answered by the input key."""
    import cerebras_pytorch as cbt
    from cerebras_contract.run_directory import RunDirectory
    from cerebras_pytorch.log import logger
    from cerebras_pytorch.process import Process, set_current_process

    model, criterion, batch = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = cbt.utils.data.DataLoader([batch])
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        process = Process(RunDirectory(Path(folder)))
        set_current_process(process)
        for _ in range(3):
            with cbt.init_context() as context:
                logger.disabled = True
                started = time.perf_counter()
                ensure_artifact(context, model, criterion, optimizer, loader)
                seconds.append(time.perf_counter() - started)
    return {"seconds": seconds[0], "cached_seconds": seconds[-1]}


def ensure_artifact(context: Any, model: Any, criterion: Any, optimizer: Any, loader: Any) -> None:
    """What `compile` does before it loads the artifact."""
    from cerebras_pytorch.amp import MixedPrecision
    from cerebras_pytorch.capture.batch import divide
    from cerebras_pytorch.compilation import _ensure_artifact
    from cerebras_pytorch.training.start import Parts
    from cerebras_wafer.compiler.frontends.training_step import CompileOptions

    precision = MixedPrecision(torch.float32)
    options = CompileOptions(context.settings.system, 1, precision.spec(context.settings.precision_opt_level))
    batch = divide(loader.first_batch(context.settings.seed))
    parts = Parts(model, optimizer, criterion, loader, batch, options, precision.loss_scaler())
    _ensure_artifact(context, parts)


def theirs(name: str) -> dict[str, float]:
    """A cold torch.compile of the same step: forward and backward, and the optimizer's update."""
    model, criterion, (inputs, target) = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    started = time.perf_counter()
    compiled, update = torch.compile(model), torch.compile(optimizer.step)
    criterion(compiled(inputs), target).backward()
    update()
    return {"seconds": time.perf_counter() - started}


def plan(layers: str) -> dict[str, float]:
    """Planning a GPT-3 of this depth in weight streaming for 64 CS-3, from a model without values."""
    from cerebras_contract.artifacts import PrecisionSpec
    from cerebras_contract.plans import Mode
    from cerebras_pytorch.capture.batch import divide
    from cerebras_pytorch.capture.step import capture_wafer_step
    from cerebras_wafer.compiler.frontends.training_step import CompileOptions
    from cerebras_wafer.compiler.pipeline import plan_step

    started = time.perf_counter()
    model, criterion, batch = gpt({**GPT3, "layers": int(layers)}, GPT3_BATCH, "meta")
    step = capture_wafer_step(model, criterion, torch.optim.AdamW(model.parameters()), divide(batch))
    captured = time.perf_counter() - started
    options = CompileOptions("cs-3", 64, PrecisionSpec(compute_dtype="bfloat16"), Mode.WEIGHT_STREAMING)
    plan_step(step, options, lambda _line: None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": time.perf_counter() - started, "capture_seconds": captured, "peak_bytes": peak}


MEASUREMENTS = {"ours": ours, "theirs": theirs, "plan": plan}


def measured(kind: str, argument: str) -> dict[str, float]:
    """A measurement in a fresh process, with a cache of inductor's that is empty."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, __file__, kind, argument]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def bench() -> None:
    for name in MODELS:
        us, them = measured("ours", name), measured("theirs", name)
        print(
            f"compile {name}: {us['seconds']:.1f} s, {them['seconds'] / us['seconds']:.2f} times as fast as a cold"
            f" torch.compile; again, from the cache: {us['cached_seconds'] * 1e3:.0f} ms"
        )
    for layers in ("24", "48", "96"):
        taken = measured("plan", layers)
        print(
            f"plan GPT-3, {layers} layers, 64 CS-3: {taken['seconds']:.1f} s (capture {taken['capture_seconds']:.1f}),"
            f" peak {taken['peak_bytes'] / 1e9:.2f} GB"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=list(MEASUREMENTS))
    parser.add_argument("argument", nargs="?")
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(MEASUREMENTS[arguments.kind](arguments.argument)))
    else:
        bench()
