"""The work of operations, counted from the shapes they were traced with."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from cerebras_wafer.compiler.ir.kernels import KernelKind
from cerebras_wafer.compiler.passes.operations import base_name, covered_by, elements, extents, multiply_adds
from cerebras_wafer.compiler.passes.refuse import REFUSED

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
SPATIAL = {1: (9,), 2: (9, 8), 3: (9, 8, 7)}
OPTIONS = {
    "plain": {"kernel_size": 3},
    "of one place": {"kernel_size": 1},
    "grouped": {"kernel_size": 3, "groups": 2},
    "dilated": {"kernel_size": 2, "dilation": 2, "stride": 2, "padding": 1},
}


def nodes_of(function, *arguments, named):
    graph = make_fx(function)(*arguments).graph
    operations = [node for node in graph.nodes if isinstance(node.target, OpOverload)]
    return [node for node in operations if base_name(node.target) == named]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed"])
@pytest.mark.parametrize("dimensions", CONVOLUTIONS)
def test_a_convolution_of_any_dimension_multiplies_as_often_as_pytorch_counts(dimensions, transposed, option):
    layer = (TRANSPOSED if transposed else CONVOLUTIONS)[dimensions](4, 6, **OPTIONS[option])
    x = torch.randn(2, 4, *SPATIAL[dimensions])
    with FlopCounterMode(display=False) as counted:
        layer(x)
    (node,) = nodes_of(layer, x, named="convolution")
    assert 2 * multiply_adds(node) == counted.get_total_flops()
    named = dict(extents(node))
    assert math.prod(named.values()) == multiply_adds(node) * layer.groups**2
    assert (named["batch"], named["channels_in"], named["channels_out"]) == (2, 4, 6)
    assert named["kernel_height"] * named["kernel_width"] == math.prod(layer.kernel_size)
    places = x if transposed else layer(x)
    assert named["height"] * named["width"] == math.prod(places.shape[2:])


def test_a_volume_folds_into_a_plane():
    (node,) = nodes_of(nn.Conv3d(4, 6, (2, 3, 1)), torch.randn(2, 4, 9, 8, 7), named="convolution")
    named = dict(extents(node))
    assert (named["kernel_height"], named["kernel_width"]) == (6, 1)
    assert (named["height"], named["width"]) == (8 * 6, 7)


def test_backward_of_a_convolution_is_two_of_forward():
    layer = nn.Conv3d(4, 6, 3)
    x = torch.randn(2, 4, 5, 5, 5, requires_grad=True)

    def step(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        result = torch.nn.functional.conv3d(x, weight)
        return torch.autograd.grad(result.sum(), [x, weight])

    arguments = x, layer.weight
    (forward,) = nodes_of(step, *arguments, named="convolution")
    (backward,) = nodes_of(step, *arguments, named="convolution_backward")
    assert multiply_adds(backward) == 2 * multiply_adds(forward)


def test_a_bilinear_layer_multiplies_three_operands():
    layer = nn.Bilinear(5, 7, 3)
    (node,) = nodes_of(layer, torch.randn(2, 5), torch.randn(2, 7), named="_trilinear")
    assert multiply_adds(node) == 2 * (2 * 5 * 7 * 3)


def test_an_embedding_bag_works_on_every_row_that_it_sums():
    bag, tokens = nn.EmbeddingBag(100, 5), torch.zeros(4, 3, dtype=torch.long)
    (node,) = nodes_of(bag, tokens, named="_embedding_bag")
    assert elements(node) == 4 * 3 * 5


@pytest.mark.parametrize("name", ["device", "layout"])
def test_a_question_about_a_tensor_is_no_work(name):
    cover = covered_by(getattr(torch.ops.prim, name).default)
    assert cover is not None
    assert (cover.kind, cover.work) == (KernelKind.LAYOUT, None)


def test_nothing_is_both_covered_and_refused():
    overloads = [
        getattr(packet, packet.overloads()[0])
        for names in REFUSED.values()
        for name in names.split()
        for spelled in (name, f"_{name}")
        if (packet := getattr(torch.ops.aten, spelled, None)) is not None
    ]
    of_real_numbers_too = {"angle", "conj_physical"}
    both = {base_name(overload).lstrip("_") for overload in overloads if covered_by(overload) is not None}
    assert both == of_real_numbers_too
    assert len(overloads) > 60
