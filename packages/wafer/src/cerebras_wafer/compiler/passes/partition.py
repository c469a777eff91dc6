"""Partition: cut the joint graph into a forward and a backward program."""

from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule

from cerebras_wafer.compiler.frontends.flat import output_nodes, placeholder_values
from cerebras_wafer.compiler.frontends.training_step import Program


def partition(joint: Program) -> tuple[Program, Program]:
    """Forward (changed buffers, outputs, what backward needs) and backward (gradients) as two programs."""
    forward_outputs = tuple(role for role in joint.outputs if not role.startswith("gradient:"))
    tangents = tuple(role for role in joint.inputs if role.startswith("tangent:"))
    forward, backward = default_partition(
        joint.graph_module, placeholder_values(joint.graph_module), num_fwd_outputs=len(forward_outputs)
    )
    saved_count = len(output_nodes(forward)) - len(forward_outputs)
    saved = tuple(f"saved:{number}" for number in range(saved_count))
    _drop_unread(backward)
    return (
        Program(forward, joint.inputs[: len(joint.inputs) - len(tangents)], forward_outputs + saved),
        Program(backward, saved + tangents, joint.outputs[len(forward_outputs) :]),
    )


def _drop_unread(backward: GraphModule) -> None:
    """Remove operations whose results nobody reads: PyTorch repeats forward's attention in backward, as an
    operation that may draw random numbers. The graph is functional, so that it only costs time."""
    for node in reversed(backward.graph.nodes):
        if node.op == "call_function" and not node.users:
            backward.graph.erase_node(node)
    backward.recompile()
