"""Warnings of a plan, over kernel graphs of real models."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from cerebras_contract.artifacts import ComputeFormat, PrecisionSpec
from cerebras_contract.plans import Mode, PlanWarning
from cerebras_contract.systems import load_system
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.step import capture_wafer_step
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.passes.advise import advise
from cerebras_wafer.compiler.pipeline import kernel_graph

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "mnist" / "train.py"


def warnings_of(
    model: nn.Module,
    inputs: torch.Tensor,
    *,
    half: bool = True,
    num_csx: int = 1,
    system: str = "cs-2",
    mode: Mode = Mode.WEIGHT_STREAMING,
) -> list[PlanWarning]:
    target = torch.zeros(len(inputs), dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = capture_wafer_step(model, nn.CrossEntropyLoss(), optimizer, divide((inputs, target)))
    precision = PrecisionSpec(compute_dtype=ComputeFormat.FLOAT16 if half else ComputeFormat.FLOAT32)
    options = CompileOptions(system=system, num_csx=num_csx, precision=precision)
    _, graph = kernel_graph(step, options, lambda _line: None)
    return advise(graph, options, load_system(system), mode)


def described(warnings: list[PlanWarning]) -> list[tuple[str, str, float | None]]:
    return [(warning.code, warning.module, warning.estimated_loss) for warning in warnings]


def test_the_articles_model_is_told_of_its_one_channel_and_its_ten_classes():
    spec = importlib.util.spec_from_file_location("mnist_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    warnings = warnings_of(example.DigitClassifier(width=32, dropout=0.5), torch.zeros(64, 1, 28, 28))
    assert described(warnings) == [
        ("dimension_not_aligned", "conv1", 1 - 1 / 8),
        ("dimension_not_aligned", "fc2", 1 - 10 / 16),
    ]
    assert warnings[0].message.startswith("1 input channel, padded to 8")
    assert warnings[1].message.startswith("10 outputs, padded to 16")
    for warning, call in zip(warnings, ("self.conv1(images)", "self.fc2(x)"), strict=True):
        assert warning.file is not None
        assert warning.file.endswith("examples/mnist/train.py")
        assert warning.line is not None
        assert call in EXAMPLE.read_text().splitlines()[warning.line - 1]


def test_float32_products_are_told_with_their_loss_by_the_systems_figures():
    model = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 16))
    inputs = torch.zeros(4096, 64)
    assert warnings_of(model, inputs) == []
    (warning,) = warnings_of(model, inputs, half=False)
    assert described([warning]) == [("float32_multiply_adds", "0", 0.75)]
    assert warning.message.startswith("2 matrix products")
    assert described(warnings_of(model, inputs, half=False, system="cs-3"))[0][2] == pytest.approx(1 - 1 / 8)


def test_a_batch_that_leaves_most_of_the_wafer_idle_is_told_what_would_fill_it():
    model = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 512))
    (warning,) = warnings_of(model, torch.zeros(16, 64))
    fill = 16 * 512 / load_system("cs-2").processing_elements
    assert described([warning]) == [("batch_too_small", "1", pytest.approx(1 - fill))]
    assert "a batch of 16 gives 1.1% of the 745,500 PEs" in warning.message
    assert "about 797 samples would give one to half of them" in warning.message
    assert warnings_of(model, torch.zeros(797, 64)) == []
    assert warnings_of(model, torch.zeros(16, 64), mode=Mode.PIPELINED) == []
    assert described(warnings_of(model, torch.zeros(1024, 64), num_csx=2))[0][0] == "batch_too_small"


def test_repeated_layers_are_told_once():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = nn.Linear(12, 12)

        def forward(self, x):
            return self.odd(x).relu()

    warnings = warnings_of(nn.Sequential(*(Block() for _ in range(5))), torch.zeros(2**17, 12))
    assert described(warnings) == [("dimension_not_aligned", "0.odd", 1 - 12 / 16)] * 2
    assert [warning.message.split(",")[0] for warning in warnings] == ["12 inputs", "12 outputs"]
    assert all("4 more modules like it" in warning.message for warning in warnings)
