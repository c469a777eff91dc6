"""The compiler's passes, on a small real model."""

import math

import pytest
import torch
from tests.fixtures.training import BATCH, Network, compiled
from torch import nn

from cerebras_contract.artifacts import PrecisionSpec, ProgramName
from cerebras_contract.plans import Mode, Phase
from cerebras_wafer.compiler.frontends.flat import output_nodes
from cerebras_wafer.errors import CompileError


def test_kernels_know_their_module_and_the_line_that_called_them():
    plan = compiled().plan
    conv = next(kernel for kernel in plan.kernels if kernel.kind == "conv2d" and kernel.phase == Phase.FORWARD)
    assert conv.module == "conv"
    assert conv.source is not None
    assert "fixtures/training.py:" in conv.source
    assert {kernel.module for kernel in plan.kernels} >= {"conv", "norm", "head", "optimizer"}


def test_multiply_adds_are_those_of_the_layers():
    kernels = compiled().graph.kernels
    by_kernel = {(k.kind, k.phase): k.multiply_adds for k in kernels if k.multiply_adds}
    convolution, linear = BATCH * 36 * 4 * 9, BATCH * 36 * 3
    assert by_kernel["conv2d", Phase.FORWARD] == convolution
    assert by_kernel["conv2d", Phase.BACKWARD] == convolution  # the input image needs no gradient
    assert by_kernel["matmul", Phase.FORWARD] == linear
    assert sum(k.multiply_adds for k in kernels if k.kind == "matmul" and k.phase == Phase.BACKWARD) == 2 * linear


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded_where_kernels_meet(dtype):
    result = compiled(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), precision=PrecisionSpec(compute_dtype=dtype))
    forward = result.programs[ProgramName.FORWARD]
    torch.manual_seed(2)
    weight, bias, image = torch.randn(3, 36), torch.randn(3), torch.randn(BATCH, 1, 6, 6)
    values = {"parameter:1.weight": weight, "parameter:1.bias": bias, "input:0": image}
    output, *_ = forward.graph_module(*(values[role] for role in forward.inputs))

    def rounded(tensor):
        return tensor.to(getattr(torch, dtype)).float()

    expected = rounded(torch.addmm(rounded(bias), rounded(image).flatten(1), rounded(weight).t()))
    assert torch.equal(output, expected)


def test_single_precision_is_left_as_it_is():
    graphs = [program.graph_module.graph for program in compiled().programs.values()]
    assert not [node for graph in graphs for node in graph.nodes if node.meta.get("rounding")]


def test_statistics_of_a_norm_stay_single_precision():
    program = compiled(precision=PrecisionSpec(compute_dtype="float16")).programs[ProgramName.FORWARD]
    returned = dict(zip(program.outputs, output_nodes(program.graph_module), strict=True))
    mean = returned["buffer:norm.running_mean"]
    assert mean is not None
    assert "getitem" in mean.name


class Sorts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sort(x.flatten(1), dim=1)[0])


def test_an_operation_without_a_kernel_is_refused_with_its_place():
    with pytest.raises(CompileError) as caught:
        compiled(Sorts())
    report = caught.value.report
    assert "aten.sort" in report.message
    assert report.file is not None
    assert report.file.endswith("test_passes.py")
    assert report.line is not None


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = -x
        return self.head(x.flatten(1))


def test_a_branch_on_data_is_refused_with_its_line_and_what_to_write_instead():
    with pytest.raises(CompileError) as caught:
        compiled(Branches())
    report = caught.value.report
    assert report.file is not None
    assert report.file.endswith("test_passes.py")
    assert "torch.where" in (report.advice or "")


def test_utilization_is_a_fraction_of_the_peak():
    report = compiled(mode=Mode.WEIGHT_STREAMING).report
    assert 0 < report.compute_utilization < 1
    assert all(0 <= layer.utilization < 1 for layer in report.layers)
    assert report.samples_per_second < report.compute_samples_per_second
    in_layers = sum(layer.seconds for layer in report.layers)
    assert math.isclose(in_layers + report.outside_layers_seconds, BATCH / report.samples_per_second)


def test_the_network_used_here_has_what_it_says():
    assert sum(parameter.numel() for parameter in Network().parameters()) == compiled().report.parameters


def test_a_refusal_is_said_in_our_words_only(capfd):
    with pytest.raises(CompileError, match="Python's way through forward depends on the value of a tensor"):
        compiled(Branches())
    assert capfd.readouterr().err == ""


class Constant(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.head = nn.Linear(36, 3)
        self.factor = torch.tensor([factor])  # no buffer: a constant of the program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1)) * self.factor


def test_the_value_of_a_constant_is_part_of_the_key():
    assert compiled(Constant(1)).key == compiled(Constant(1)).key
    assert compiled(Constant(1)).key != compiled(Constant(3)).key


class Encoder(nn.Module):
    """PyTorch's own transformer layer, with its defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model=6, nhead=2, dim_feedforward=8, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x.squeeze(1)).mean(1))


def test_a_standard_transformer_layer_is_covered():
    kinds = {kernel.kind for kernel in compiled(Encoder()).plan.kernels}
    assert {"matmul", "softmax", "norm", "elementwise"} <= kinds


def test_evaluation_is_rounded_as_training_is():
    program = compiled(Constant(1), precision=PrecisionSpec(compute_dtype="bfloat16")).programs[ProgramName.EVALUATE]
    assert [node for node in program.graph_module.graph.nodes if node.meta.get("rounding")]


class Attention(nn.Module):
    """Attention as PyTorch has it: an operation that may draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.head = nn.Linear(6, 24), nn.Linear(8 * 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inwards(x.squeeze(1)).split(8, dim=2)
        attended = nn.functional.scaled_dot_product_attention(*(t.unsqueeze(1) for t in (query, key, value)))
        return self.head(attended.flatten(1))


def test_backward_does_not_repeat_the_attention_of_forward():
    backward = compiled(Attention()).programs[ProgramName.BACKWARD].graph_module.graph
    names = [str(node.target) for node in backward.nodes if "flash_attention" in str(node.target)]
    assert len(names) == 1
    assert "backward" in names[0]
