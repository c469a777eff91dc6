"""Segments of programs, the code in their places, and indices that are checked."""

import pytest
import torch
from tests.fixtures.training import compiled
from torch import nn
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from cerebras_contract.artifacts import GENERATED, CodeSpec
from cerebras_contract.plans import Mode
from cerebras_wafer.compiler import segments as rules
from cerebras_wafer.compiler.frontends.flat import placeholder_values
from cerebras_wafer.compiler.passes.check_indices import has_indices, with_checked_indices
from cerebras_wafer.compiler.segments import operations_of, segment, segments_of
from cerebras_wafer.simulator.generated import SegmentCode, with_code


def deep(layers: int = 5) -> nn.Module:
    equal = [nn.Sequential(nn.Linear(36, 36), nn.LayerNorm(36), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(nn.Flatten(), *equal, nn.Dropout(0.5), nn.Linear(36, 3))


def values_for(program) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).uniform_(0.1, 1, generator=generator)
        if value.is_floating_point()
        else torch.zeros(value.shape, dtype=value.dtype)
        for value in placeholder_values(program)
    ]


@pytest.mark.parametrize("make", [deep, lambda: None], ids=["equal layers", "convolutions"])
@pytest.mark.parametrize("name", GENERATED)
def test_segments_behind_each_other_are_the_program(monkeypatch, make, name):
    monkeypatch.setattr(rules, "SEGMENT_BYTES", 0)
    made = compiled(make(), mode=Mode.WEIGHT_STREAMING)
    program = made.programs[name].graph_module
    parts = segments_of(made.programs, made.plan)[name]
    assert len(parts) > 1
    specs = [CodeSpec(file=part.digest, first=part.first, end=part.end) for part in parts]
    code = {part.digest: lambda tensors, module=part.graph_module: module(*tensors) for part in parts}
    values = values_for(program)
    torch.manual_seed(1)
    expected = program(*values)
    torch.manual_seed(1)
    given = list(values)
    results = with_code(program, specs, code)(given)
    assert not given
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))


def test_layers_that_are_alike_share_their_code(monkeypatch):
    monkeypatch.setattr(rules, "SEGMENT_BYTES", 0)
    made = compiled(deep(layers=6), mode=Mode.WEIGHT_STREAMING)
    for name, parts in segments_of(made.programs, made.plan).items():
        digests = [part.digest for part in parts]
        assert len(digests) >= 6, name
        assert len(set(digests)) <= 4, name


def test_layers_with_few_weights_share_a_segment(monkeypatch):
    made = compiled(deep(), mode=Mode.WEIGHT_STREAMING)
    assert [len(parts) for parts in segments_of(made.programs, made.plan).values()] == [1, 1, 1]
    monkeypatch.setattr(rules, "SEGMENT_BYTES", 3 * 4 * 36 * 40)  # three layers with their bias and norm
    assert [len(parts) for parts in segments_of(made.programs, made.plan).values()] == [2, 2, 2]


def test_pipelined_a_program_is_one_segment():
    made = compiled(deep(), mode=Mode.PIPELINED)
    for name, parts in segments_of(made.programs, made.plan).items():
        assert [(part.first, part.end) for part in parts] == [(0, len(operations_of(made.programs[name].graph_module)))]


def test_code_gets_its_tensors_as_they_were_traced():
    """It reads memory without looking at strides: a gradient that is one number for all, a batch that is a view."""
    program = symbolic_trace(nn.Linear(4, 3))
    next(iter(program.graph.nodes)).meta["val"] = torch.empty(5, 4)
    seen = []
    code = SegmentCode(segment(program, 0, 1), lambda tensors: seen.extend(tensors) or [])
    for given in (torch.ones(()).expand(5, 4), torch.rand(4, 5).t(), torch.rand(5, 4)):
        code.run([given])
        assert torch.equal(seen[-1], given)
        assert seen[-1].stride() == (4, 1)
    assert seen[-1] is given  # as it is, where it lies so already


INDEXED = {
    "embedding": (lambda read, index: torch.ops.aten.embedding(read, index), [0, 3], 4, -1),
    "gather": (lambda read, index: torch.gather(read, 0, index.view(1, 2)), [0, 3], 4, -1),
    "index_select": (lambda read, index: torch.index_select(read, 1, index), [0, 2], 3, -1),
    "index": (lambda read, index: read[:, index], [-3, 2], 3, -4),
    "the same index twice": (lambda read, index: read[index, index], [-3, 2], 3, -4),
    "index_put": (lambda read, index: read.index_put((index,), torch.ones(3)), [-4, 3], 4, -5),
    "scatter": (lambda read, index: read.scatter(1, index.view(1, 2), 1.0), [0, 2], 3, -1),
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_out_of_range_is_told_and_not_read(name):
    function, fine, too_large, too_small = INDEXED[name]
    read, index = torch.arange(12.0).view(4, 3), torch.tensor(fine)
    checked = with_checked_indices(make_fx(lambda *given: (function(*given),), tracing_mode="fake")(read, index))
    assert checked is not None
    result, in_range = checked(read, index)
    assert torch.equal(result, function(read, index))
    assert in_range
    for wrong in (too_large, too_small, 1 << 40):
        _, in_range = checked(read, torch.tensor([fine[0], wrong]))
        assert not in_range


def test_a_program_without_indices_is_left_as_it_is():
    program = make_fx(lambda x: (x.relu(), x[:, 1:], x[x.shape[0] - 1]), tracing_mode="fake")(torch.ones(3, 4))
    assert with_checked_indices(program) is None
    assert not has_indices(program)
