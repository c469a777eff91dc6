"""Partition: cut the joint graph into a forward and a backward program."""

from collections.abc import Sequence

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
    gradients = _drop_missing_gradients(backward, joint.outputs[len(forward_outputs) :])
    return (
        Program(forward, joint.inputs[: len(joint.inputs) - len(tangents)], forward_outputs + saved),
        Program(backward, saved + tangents, gradients),
    )


def _drop_missing_gradients(backward: GraphModule, roles: Sequence[str]) -> tuple[str, ...]:
    """Return only the gradients that exist; the roles of these."""
    pairs = [(node, role) for node, role in zip(output_nodes(backward), roles, strict=True) if node is not None]
    backward.graph.output_node().args = (tuple(node for node, _ in pairs),)
    backward.recompile()
    return tuple(role for _, role in pairs)
