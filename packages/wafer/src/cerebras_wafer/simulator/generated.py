"""Generated code in the place of the operations of a program that it was made for."""

import operator
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _BoxedCodeGen

from cerebras_contract.artifacts import CodeSpec
from cerebras_wafer.compiler.frontends.flat import placeholder_values
from cerebras_wafer.compiler.passes.check_indices import has_indices
from cerebras_wafer.compiler.segments import Segment, operations_of, segment

Running = Callable[[list[Tensor]], Sequence[Tensor]]
"""What runs a program: it takes its tensors in one list, which it empties."""


def with_code(program: GraphModule, specs: Sequence[CodeSpec], code: Mapping[str, Running]) -> GraphModule:
    """A program in which code, by its file, runs in place of operations; the program itself where there is no code."""
    if not specs:
        return program
    graph, copies, attributes = Graph(), dict[Node, Node](), dict[str, Any]()
    begins = {spec.first: spec for spec in specs}
    places = {node: place for place, node in enumerate(operations_of(program))}
    for node in program.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            copies[node] = graph.node_copy(node)
            if node.op == "get_attr":
                attributes[str(node.target)] = attrgetter(str(node.target))(program)
        elif places.get(node) in begins:
            spec = begins[places[node]]
            part = segment(program, spec.first, spec.end)
            attributes[f"code_{spec.first}"] = SegmentCode(part, code[spec.file])
            _call(graph, f"code_{spec.first}", part, copies)
    (returned,) = program.graph.output_node().args
    assert isinstance(returned, (tuple, list))
    graph.output(tuple(copies[node] if isinstance(node, Node) else None for node in returned))
    graph.set_codegen(_BoxedCodeGen())
    return GraphModule(attributes, graph)


def _call(graph: Graph, name: str, part: Segment, copies: dict[Node, Node]) -> None:
    """Nothing but the list holds what is given, so that the code frees what it has read for the last time."""
    given = graph.call_function(list, ([copies[node] for node in part.inputs],))
    results = graph.call_method("run", (graph.get_attr(name), given))
    for number, node in enumerate(part.outputs):
        copies[node] = graph.call_function(operator.getitem, (results, number))


class SegmentCode:
    """The code of a segment, for tensors of any strides: code reads memory as the traced tensors lay in it."""

    def __init__(self, part: Segment, code: Running) -> None:
        self._strides = [value.stride() for value in placeholder_values(part.graph_module)]
        self._code = code
        self._checks_indices = has_indices(part.graph_module)

    def run(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """The results of the segment. Empties `tensors`. Raises `IndexError` where an index is out of range."""
        for number, (tensor, expected) in enumerate(zip(tensors, self._strides, strict=True)):
            if tensor.stride() != expected:
                tensors[number] = torch.empty_strided(tensor.shape, expected, dtype=tensor.dtype).copy_(tensor)
        results = self._code(tensors)
        if self._checks_indices and not results[-1]:
            raise IndexError("an index is out of range")
        return results
