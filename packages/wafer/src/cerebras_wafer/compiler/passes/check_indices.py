"""Check indices: let a program say that an index was out of range, where generated code would end the process.

Generated code checks an index in the thread that reads with it, and an exception in any thread but the first ends the
process. So each index out of range is taken as 0, and the program returns as one more result whether all were in range:
where not, the results are thrown away, and the program tells at which line of the script it was.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import reduce
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from cerebras_wafer.compiler.frontends.flat import node_value

aten = torch.ops.aten

# Operations whose third argument indexes the first along the dimension that the second names, from 0 on.
ALONG_A_DIMENSION = frozenset(
    {
        aten.gather.default, aten.index_select.default, aten.index_add.default, aten.index_copy.default,
        aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.scatter.src, aten.scatter.value,
        aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_add.default, aten.scatter_reduce.two,
    }
)  # fmt: skip
# Operations whose second argument is a list of indices, each of the dimension in its place; they may be negative.
OF_ALL_DIMENSIONS = frozenset({aten.index.Tensor, aten.index_put.default})


def with_checked_indices(program: GraphModule) -> GraphModule | None:
    """A copy of a program whose last result is whether all indices were in range; None for a program without any."""
    graph = Graph()
    copied = GraphModule(program, graph)
    graph.output(graph.graph_copy(program.graph, {}))
    checks = []
    for node in list(graph.nodes):
        for index, (first, end) in _ranges(node).items():
            with graph.inserting_before(node):
                checks.append(_check(graph, node, index, first, end))
    if not checks:
        return None
    output = graph.output_node()
    with graph.inserting_before(output):
        all_in_range = reduce(lambda one, other: _call(graph, aten.logical_and.default, one, other), checks)
    (results,) = output.args
    assert isinstance(results, (tuple, list))
    output.args = ((*results, all_in_range),)
    copied.recompile()
    return copied


def has_indices(program: GraphModule) -> bool:
    """Whether `with_checked_indices` finds any."""
    return any(_ranges(node) for node in program.graph.nodes)


def _ranges(node: Node) -> dict[Node, tuple[int, int]]:
    """The range that each index of an operation has to be in; of one for several dimensions, that of all."""
    ranges: dict[Node, tuple[int, int]] = {}
    for index, first, end in _indices(node):
        lowest, highest = ranges.get(index, (first, end))
        ranges[index] = max(lowest, first), min(highest, end)
    return ranges


def _indices(node: Node) -> Iterator[tuple[Node, int, int]]:
    """The whole numbers that an operation reads with, and the range that each has to be in."""
    arguments: tuple[Any, ...] = node.args
    if node.target == aten.embedding.default:
        table, index = arguments[:2]
        yield index, 0, _size(table, 0)
    elif node.target in ALONG_A_DIMENSION:
        read, dimension, index = arguments[:3]
        yield index, 0, _size(read, dimension)
    elif node.target in OF_ALL_DIMENSIONS:
        read, indices = arguments[:2]
        for dimension, index in enumerate(indices):
            if index is not None and node_value(index).dtype != torch.bool:
                yield index, -_size(read, dimension), _size(read, dimension)


def _size(node: Node, dimension: int) -> int:
    shape = node_value(node).shape
    return shape[dimension] if shape else 1


def _check(graph: Graph, node: Node, index: Node, first: int, end: int) -> Node:
    """Whether an index is in its range; the operation gets 0 where it is not."""
    is_inside = _call(
        graph,
        aten.logical_and.default,
        _call(graph, aten.ge.Scalar, index, first),
        _call(graph, aten.lt.Scalar, index, end),
    )
    zero = _call(graph, aten.zeros_like.default, index)
    node.replace_input_with(index, _call(graph, aten.where.self, is_inside, index, zero))
    return _call(graph, aten.all.default, is_inside)


def _call(graph: Graph, operation: OpOverload, *arguments: Node | int) -> Node:
    node = graph.call_function(operation, arguments)
    values: Any = map_arg(arguments, node_value)
    with detect_fake_mode(values) or nullcontext():
        node.meta["val"] = operation(*values)
    return node
