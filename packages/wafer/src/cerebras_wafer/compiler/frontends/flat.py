"""Helpers for functional graphs over flat tensors."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from cerebras_wafer.compiler.frontends.places import module_path, place_text
from cerebras_wafer.errors import CompilerBug


def export_flat(graph_module: GraphModule, in_place_of: Sequence[int] | None = None) -> ExportedProgram:
    """Make a graph a program that can be written to a file, without tracing it once more.

    With `in_place_of` it returns nothing: each result is put in the place of the input of that number.

    Of what is known of a node it keeps its shape and its place in the user's code: the rest takes most of the time
    and of the file. There are no example inputs, so that the file holds nothing that has to be unpickled.
    """
    graph, constants = Graph(), dict[str, Any]()
    copied = _lifted_constants(graph_module, graph, constants)
    inputs = [InputSpec(InputKind.CONSTANT_TENSOR, _argument(node), node.name, True) for node in copied.values()]
    for node in graph_module.graph.nodes:
        if node not in copied:
            copied[node] = graph.node_copy(node, copied.__getitem__)
            copied[node].meta = _kept_meta(node)
    given = [copied[node] for node in graph_module.graph.nodes if node.op == "placeholder"]
    inputs += [InputSpec(InputKind.USER_INPUT, _argument(node), None) for node in given]
    returned = [copied[node] for node in output_nodes(graph_module) if node is not None]
    if in_place_of is None:
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(node), None) for node in returned]
    else:
        changed = [given[number].name for number in in_place_of]
        pairs = zip(returned, changed, strict=True)
        outputs = [OutputSpec(OutputKind.USER_INPUT_MUTATION, _argument(node), name) for node, name in pairs]
    return ExportedProgram(
        root=GraphModule({}, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints={},
        module_call_graph=[_flat_call(inputs, outputs)],
        example_inputs=None,
        constants=constants,
    )


def _lifted_constants(graph_module: GraphModule, graph: Graph, constants: dict[str, Any]) -> dict[Node, Node]:
    """Constants of the graph as its first inputs: a file keeps them beside the graph."""
    lifted: dict[Node, Node] = {}
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            constants[f"constant_{len(constants)}"] = value = attrgetter(str(node.target))(graph_module).detach()
            lifted[node] = graph.placeholder(f"constant_{len(lifted)}")
            lifted[node].meta["val"] = node.meta.get("val", value)
    return lifted


def _kept_meta(node: Node) -> dict[str, Any]:
    """The traced value, and where in the user's code the operation is."""
    meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    if isinstance(node.target, OpOverload):
        meta["custom"] = {"module": module_path(node), "source": place_text(node)}
    return meta


def _argument(node: Node) -> TensorArgument:
    return TensorArgument(name=node.name)


def _flat_call(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> ModuleCallEntry:
    """How the program is called: with its inputs one by one, for a flat tuple."""
    arguments = [spec.arg for spec in inputs if spec.kind == InputKind.USER_INPUT]
    results = [spec.arg for spec in outputs if spec.kind == OutputKind.USER_OUTPUT]
    in_spec = pytree.tree_structure((tuple(arguments), {}))
    out_spec = pytree.tree_structure(tuple(results))
    return ModuleCallEntry("", ModuleCallSignature(arguments, results, in_spec, out_spec))


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
