"""The kernel graph: its text form, its verifier, and the same step at another batch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.training import Network, compiled
from torch import nn

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import Kernel, KernelGraph, KernelKind, Weight
from cerebras_wafer.compiler.ir.scale import scaled
from cerebras_wafer.compiler.ir.text import parse_graph, print_graph
from cerebras_wafer.compiler.ir.verify import verify
from cerebras_wafer.errors import CompilerBug
from cerebras_wafer.hardware.work import WorkClass

NAMES = st.text(min_size=1, max_size=12)
COUNTS = st.integers(0, 2**60)
SHAPES = st.lists(st.integers(0, 10**6), max_size=5).map(tuple)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    return Kernel(
        name=draw(NAMES),
        kind=draw(st.sampled_from(KernelKind)),
        phase=draw(st.sampled_from(Phase)),
        module=draw(st.text(max_size=12)),
        source=draw(st.none() | NAMES),
        operations=tuple(draw(st.lists(NAMES, max_size=3))),
        reads=tuple(draw(st.lists(NAMES, max_size=3))),
        shape=draw(SHAPES),
        dtype=draw(st.sampled_from(["float32", "int64", "none"])),
        extents=tuple(draw(st.lists(st.tuples(st.sampled_from(["batch", "rows"]), COUNTS), max_size=3))),
        multiply_adds=draw(COUNTS),
        element_work=tuple(draw(st.dictionaries(st.sampled_from(WorkClass), COUNTS, max_size=3)).items()),
        output_bytes=draw(COUNTS),
        saved_bytes=draw(COUNTS),
        grows_with_batch=draw(st.booleans()),
    )


@pytest.fixture(scope="module")
def graph() -> KernelGraph:
    return compiled().graph


WEIGHTS = st.builds(Weight, NAMES, SHAPES, st.booleans(), COUNTS, st.none() | NAMES)
GRAPHS = st.builds(
    KernelGraph,
    st.integers(1, 10**6),
    st.sampled_from(["float32", "float16"]),
    st.lists(WEIGHTS, max_size=3).map(tuple),
    st.lists(kernels(), max_size=4).map(tuple),
)


@given(GRAPHS)
@settings(max_examples=200, deadline=None)
def test_the_text_form_round_trips_whatever_the_names_are(graph):
    assert parse_graph(print_graph(graph)) == graph


def test_the_text_of_a_real_step_round_trips(graph):
    assert parse_graph(print_graph(graph)) == graph


def test_a_text_that_is_none_is_said_with_its_line(graph):
    text = print_graph(graph).replace("multiply_adds 864", "multiply_adds many")
    with pytest.raises(CompilerBug, match="many"):
        parse_graph(text)


def test_kernels_know_what_they_read(graph):
    by_name = {kernel.name: kernel for kernel in graph.kernels}
    assert by_name["forward.conv.conv2d"].reads == ("input:0", "parameter:conv.weight", "parameter:conv.bias")
    assert by_name["loss.model.loss"].reads == ("kernel:forward.head.matmul", "target:0")
    head = by_name["backward.head.matmul"]
    assert set(head.reads) == {
        "parameter:head.weight", "kernel:loss.model.loss", "kernel:forward.dropout.layout",
    }  # fmt: skip
    conv = by_name["backward.conv.conv2d"]
    assert conv.reads[-2:] == ("input:0", "parameter:conv.weight")


def test_what_forward_keeps_is_counted_once_and_weights_are_not(graph):
    images, pooled = 8 * 4 * 36, 8 * 4 * 9
    # two relu results, pooling's indices (int64), what dropout hands on, and batch norm's mean and deviation
    assert graph.saved_bytes == 4 * images * 2 + 8 * pooled + 4 * pooled + 4 * 4 * 4


@pytest.mark.parametrize("batch_size", [4, 16])
def test_a_scaled_graph_is_the_graph_of_that_batch(batch_size):
    expected = compiled(Network(dropout=0.3), batch_size=batch_size).graph
    actual = scaled(compiled(Network(dropout=0.3)).graph, batch_size)
    for one, other in zip(actual.kernels, expected.kernels, strict=True):
        assert (one.name, one.multiply_adds, one.extents) == (other.name, other.multiply_adds, other.extents)
        assert one.shape == other.shape or one.kind in (KernelKind.LAYOUT, KernelKind.MATMUL)
    assert actual.weights == expected.weights


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("forward.head.matmul", {"multiply_adds": 865}, "865 multiply-adds, extents say 864"),
        ("forward.head.matmul", {"reads": ("kernel:nobody",)}, "reads nobody, which is not there"),
        ("forward.head.matmul", {"reads": ("parameter:ghost",)}, "reads ghost, which is not there"),
        ("forward.head.matmul", {"name": "forward.conv.conv2d"}, "its name is taken"),
        ("forward.head.matmul", {"output_bytes": -1}, "a negative amount of work"),
        ("forward.norm.norm", {"multiply_adds": 5}, "multiply-adds in a kernel that multiplies nothing"),
        ("forward.model.layout", {"phase": Phase.BACKWARD}, "phase forward comes after phase backward"),
        ("backward.norm.norm", {"saved_bytes": 5}, "keeps what is made later"),
        ("forward.conv.conv2d", {"extents": (("rows", 3),)}, "are not those of a conv2d"),
    ],
)
def test_the_verifier_names_the_pass_and_the_kernel(graph, name, change, fault):
    broken = tuple(replace(kernel, **change) if kernel.name == name else kernel for kernel in graph.kernels)
    with pytest.raises(CompilerBug, match=f"after match: kernel .*{fault}"):
        verify(replace(graph, kernels=broken), after="match")


def test_a_graph_without_a_phase_is_no_training_step(graph):
    rest = tuple(kernel for kernel in graph.kernels if kernel.phase != Phase.LOSS and kernel.phase != Phase.BACKWARD)
    with pytest.raises(CompilerBug, match="no kernel of phase loss, backward"):
        verify(replace(graph, kernels=rest), after="match")


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x.flatten(1))))


def test_a_weight_of_two_names_is_counted_once():
    made = compiled(Tied())
    tied = [weight for weight in made.graph.weights if weight.tied_to]
    assert len(tied) == 1
    assert {tied[0].name, tied[0].tied_to} == {"first.weight", "second.weight"}
    assert not tied[0].trained
    assert made.report.parameters == sum(parameter.numel() for parameter in Tied().parameters())
    assert parse_graph(print_graph(made.graph)) == made.graph
