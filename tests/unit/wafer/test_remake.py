"""Where weights stream, forward hands weights on to backward as they are, and backward rounds them again."""

from tests.fixtures.training import compiled

from cerebras_contract.artifacts import ComputeFormat, PrecisionSpec, ProgramName
from cerebras_contract.plans import Mode
from cerebras_wafer.compiler.frontends.flat import output_nodes
from cerebras_wafer.simulator.rounding import round_to

HALF = PrecisionSpec(compute_dtype=ComputeFormat.BFLOAT16)


def handed_on(mode):
    """What forward keeps for backward: how many weights, and how many roundings of weights."""
    forward = compiled(precision=HALF, mode=mode).programs[ProgramName.FORWARD]
    placeholders = [node for node in forward.graph_module.graph.nodes if node.op == "placeholder"]
    weights = {node for node, role in zip(placeholders, forward.inputs, strict=True) if role.startswith("parameter:")}
    kept = [
        node
        for node, role in zip(output_nodes(forward.graph_module), forward.outputs, strict=True)
        if role.startswith("saved:")
    ]
    graph = forward.graph_module.graph
    roundings = {node for node in graph.nodes if node.target == round_to and node.all_input_nodes[0] in weights}
    rounded = [node for node in kept if node in roundings]
    views = [node for node in kept if node.all_input_nodes and node.all_input_nodes[0] in roundings]
    return sum(node in weights for node in kept), len(rounded), len(views)


def test_weights_that_stream_are_handed_on_unrounded():
    assert handed_on(Mode.PIPELINED) == (0, 2, 1)  # of the convolution and the norm, and a view of the head's
    assert handed_on(Mode.WEIGHT_STREAMING) == (3, 0, 0)
