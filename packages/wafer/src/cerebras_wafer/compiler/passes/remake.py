"""Remake: let backward round a weight again, where forward would keep the rounded weight for it.

Where weights stream, a rounded copy of each weight, kept from forward to backward, would be as large as the model.
"""

from torch._ops import OpOverload
from torch.fx import Node

from cerebras_wafer.compiler.frontends.flat import output_nodes
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.simulator.rounding import round_to


def remake_rounded_weights(forward: Program, backward: Program) -> None:
    """Change both programs in place: forward hands on the weight itself, and backward rounds it."""
    parameters = {
        node: role for node, role in zip(_inputs(forward), forward.inputs, strict=True) if role.startswith("parameter:")
    }
    returned = list(output_nodes(forward.graph_module))
    inputs = dict(zip(backward.inputs, _inputs(backward), strict=True))
    for number, role in enumerate(forward.outputs):
        node = returned[number]
        chain = _made_of_a_weight(node, parameters) if role in inputs and node is not None else []
        if len(chain) > 1 and any(link.target == round_to for link in chain):
            returned[number] = chain[0]
            _make_again(inputs[role], chain)
    forward.graph_module.graph.output_node().args = (tuple(returned),)
    for program in (forward, backward):
        program.graph_module.recompile()


def _inputs(program: Program) -> list[Node]:
    return [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]


def _made_of_a_weight(node: Node, parameters: dict[Node, str]) -> list[Node]:
    """From a weight to `node` by roundings and views; empty where it is not so."""
    chain = [node]
    while chain[0] not in parameters:
        first = chain[0]
        is_view = isinstance(first.target, OpOverload) and first.target.is_view
        if not (is_view or first.target == round_to) or len(first.all_input_nodes) != 1:
            return []
        chain.insert(0, first.all_input_nodes[0])
    return chain


def _make_again(given: Node, chain: list[Node]) -> None:
    """In backward, in place of what it was given: the weight, and the chain from it, before its first use."""
    graph = given.graph
    users = set(given.users)
    first_use = next(node for node in graph.nodes if node in users)
    given.meta["val"] = chain[0].meta["val"]
    made = given
    with graph.inserting_before(first_use):
        for link in chain[1:]:
            made = graph.node_copy(link, lambda _, source=made: source)  # type: ignore[misc]
    given.replace_all_uses_with(made, delete_user_cb=lambda user: user in users)
