"""Goldens: the kernel graph and the reports, in both modes, of a small form of every example.

`pytest tests/unit/wafer/test_golden.py --update-golden` writes them; the difference is for a person to read.
"""

from functools import cache

import pytest
import torch
from tests.fixtures.zoo import EXAMPLES, TINY, load, parameters
from torch import nn

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_contract.plans import Mode
from cerebras_contract.systems import load_system
from cerebras_pytorch.capture.batch import Batch, divide
from cerebras_pytorch.capture.step import capture_wafer_step
from cerebras_pytorch.nn import bare_module
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.ir.text import print_graph
from cerebras_wafer.compiler.pipeline import kernel_graph
from cerebras_wafer.compiler.planning import plan_graph
from cerebras_wafer.compiler.report.build import build_report
from cerebras_wafer.compiler.report.text import report_text

BATCH = {"train_input": {"batch_size": 16}}
OPTIONS = CompileOptions("cs-2", 1, PrecisionSpec(compute_dtype="float16"))
NAMES = ["mnist", *TINY]


def parts_of(name: str) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, Batch]:
    example = load(name)
    if name == "mnist":
        model = example.DigitClassifier(width=4, dropout=0.5)
        batch = Batch((torch.zeros(16, 1, 28, 28),), torch.zeros(16, dtype=torch.long))
        return model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()), batch
    parts = example.build(parameters(name, TINY[name], BATCH))
    return bare_module(parts.model), parts.criterion, parts.optimizer, divide(next(iter(parts.loader)))


@cache
def graph_of(name: str) -> KernelGraph:
    step = capture_wafer_step(*parts_of(name))
    return kernel_graph(step, OPTIONS, lambda _line: None)[1]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    """Files of the examples are named from here."""
    monkeypatch.chdir(EXAMPLES.parent)


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_graph_of_an_example(name, golden):
    golden(f"{name}.kernels.txt", print_graph(graph_of(name)))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("name", NAMES)
def test_the_report_of_an_example(name, mode, golden):
    graph, system = graph_of(name), load_system("cs-2")
    options = CompileOptions(OPTIONS.system, 1, OPTIONS.precision, mode)
    plan = plan_graph(graph, options, system, lambda _line: None)
    golden(f"{name}.{mode}.report.txt", report_text(build_report("cs_golden", plan, graph, options, system)))
