"""Helpers for functional graphs over flat tensors."""

from collections.abc import Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from cerebras_wafer.errors import CompilerBug


def export_flat(graph_module: GraphModule) -> ExportedProgram:
    """Make a graph a program that can be written to a file.

    Its example inputs are the fake tensors it was traced with, so no weight is materialised; they are left out
    of the file, which holds nothing that has to be unpickled.
    """
    examples = tuple(placeholder_values(graph_module))
    with torch.no_grad():
        exported = torch.export.export(graph_module, examples, strict=False)
    exported.example_inputs = None
    return exported


def placeholder_values(graph_module: GraphModule) -> list[torch.Tensor]:
    """The fake tensors that stand for the inputs of a traced graph, in order."""
    return [node_value(node) for node in graph_module.graph.nodes if node.op == "placeholder"]


def node_value(node: Node) -> torch.Tensor:
    """The fake tensor a node was traced with."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise CompilerBug(f"node {node.name} of the graph has no tensor value")
    return value


def output_nodes(graph_module: GraphModule) -> Sequence[Node | None]:
    """What the graph returns, in order."""
    (returned,) = graph_module.graph.output_node().args
    if not isinstance(returned, (tuple, list)):
        raise CompilerBug("a graph does not return a flat tuple")
    return [node if isinstance(node, Node) else None for node in returned]
