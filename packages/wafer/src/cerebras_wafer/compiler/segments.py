"""Segments: pieces of a program that run one after the other, so that code can be generated for each.

Where weights stream, a segment begins where the weights of another layer are first read: a layer's are needed only
while its segment runs, and layers that are alike share their code. Layers with few weights share a segment, since each
takes the C++ compiler some seconds. Pipelined, a program is one segment.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from cerebras_contract.artifacts import GENERATED, ProgramName
from cerebras_contract.digests import sha256_of_json
from cerebras_contract.plans import Mode, Phase, Plan
from cerebras_wafer.compiler.frontends.flat import placeholder_values
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.compiler.keys import canonical_graph
from cerebras_wafer.simulator.layers import LayerWeights, parameters_of, spans_of, weights_handed_on

SEGMENT_BYTES = 16 << 20
"""Layers are one segment as long as their weights are no more than this."""


@dataclass(frozen=True)
class Segment:
    """The operations `first` up to `end` of a program as a graph of their own; inputs and constants do not count.

    `inputs` and `outputs` are the nodes of the program that go in and come out, in order, `last` is the last operation.
    """

    first: int
    end: int
    inputs: list[Node]
    outputs: list[Node]
    last: Node
    graph_module: GraphModule

    @property
    def digest(self) -> str:
        """The same for segments for which the same code is generated."""
        strides = [list(value.stride()) for value in placeholder_values(self.graph_module)]
        return sha256_of_json([canonical_graph(self.graph_module), strides])


def segments_of(programs: Mapping[ProgramName, Program], plan: Plan) -> dict[ProgramName, list[Segment]]:
    """The segments of forward, backward and evaluate."""
    if plan.mode == Mode.PIPELINED:
        modules = {name: programs[name].graph_module for name in GENERATED}
        return {name: [segment(module, 0, len(operations_of(module)))] for name, module in modules.items()}
    forward, backward, evaluate = (programs[name] for name in GENERATED)
    handed_on = weights_handed_on(forward.graph_module, forward.inputs, forward.outputs)
    weights = {
        ProgramName.FORWARD: parameters_of(forward.inputs),
        ProgramName.BACKWARD: [handed_on.get(role) for role in backward.inputs],
        ProgramName.EVALUATE: parameters_of(evaluate.inputs),
    }
    return {name: _cut(programs[name].graph_module, names, plan, _phase(name)) for name, names in weights.items()}


def _phase(name: ProgramName) -> Phase:
    return Phase.BACKWARD if name == ProgramName.BACKWARD else Phase.FORWARD


def _cut(program: GraphModule, weights: Sequence[str | None], plan: Plan, phase: Phase) -> list[Segment]:
    nodes, operations = list(program.graph.nodes), operations_of(program)
    places = {node: place for place, node in enumerate(operations)}
    begins = [places[nodes[place]] for place in _begins(program, weights, plan, phase)]
    cuts = [0, *(_moved(operations, begin) for begin in begins), len(operations)]
    segments = [segment(program, first, end) for first, end in pairwise(cuts) if first < end]
    return [one for one in segments if one.outputs]


def _begins(program: GraphModule, weights: Sequence[str | None], plan: Plan, phase: Phase) -> list[int]:
    """The places of the nodes that begin a segment, but for the first: where a layer begins that is too much more."""
    values = dict(zip(weights, placeholder_values(program), strict=True))
    layers = LayerWeights(plan, [name for name in weights if name is not None])
    begins, held_bytes = [], 0
    for name, span in sorted(spans_of(program, weights, {}, layers, phase).items(), key=lambda item: item[1].first):
        layer_bytes = sum(values[weight].nbytes for weight in layers.of[name])
        if held_bytes and held_bytes + layer_bytes > SEGMENT_BYTES:
            begins.append(span.first)
            held_bytes = 0
        held_bytes += layer_bytes
    return begins


def _moved(operations: Sequence[Node], place: int) -> int:
    """The place to cut, near `place`: not before the parts of a result are taken, and before views for what follows,
    so that a layer has its own."""
    while place < len(operations) and operations[place].target is operator.getitem:
        place += 1
    before = set(operations[:place])
    while place and _is_view(operations[place - 1]) and not before & operations[place - 1].users.keys():
        place -= 1
    return place


def _is_view(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.is_view


def operations_of(program: GraphModule) -> list[Node]:
    """What a program does, in order: neither inputs nor constants."""
    return [node for node in program.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]


def segment(program: GraphModule, first: int, end: int) -> Segment:
    """The operations `first` up to `end` of a program; constants that they read are in it."""
    own = operations_of(program)[first:end]
    inside = set(own)
    read = {node for operation in own for node in operation.all_input_nodes} - inside
    inputs = [node for node in program.graph.nodes if node in read and node.op != "get_attr"]
    outputs = [node for node in own if any(user not in inside for user in node.users)]
    graph, constants, copies = Graph(), dict[str, torch.Tensor](), dict[Node, Node]()
    for number, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{number}")
        copies[node].meta["val"] = node.meta["val"]
    for node in program.graph.nodes:
        if node in inside or (node in read and node.op == "get_attr"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in read and node.op == "get_attr":
            constants[str(node.target)] = attrgetter(str(node.target))(program)
    graph.output(tuple(copies[node] for node in outputs))
    return Segment(first, end, inputs, outputs, own[-1], GraphModule(constants, graph))
