"""Host memory: what the process that executes a step holds at most, beyond what it held before.

Follows the programs operation by operation: a result lives until its last use, as in the engine. Where weights
stream, parameters and gradients count while their layer runs; pipelined, everything that is trained counts always.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from cerebras_contract.artifacts import Codegen, ProgramName, TensorSpec
from cerebras_contract.plans import Mode, Plan
from cerebras_wafer.compiler.frontends.flat import output_nodes, placeholder_values
from cerebras_wafer.compiler.frontends.training_step import Program, TrainingStep, Update
from cerebras_wafer.compiler.segments import Segment, segments_of
from cerebras_wafer.simulator.layers import weights_handed_on
from cerebras_wafer.simulator.update import CHUNK_ELEMENTS, LET_GO_ELEMENTS

WORKSPACE_SHARE = 0.3
"""Of what lives: room that operations take while they run, and that the allocator does not give back."""
WORKSPACE_BYTES = 192 << 20
"""For threads, buffers of matrix products, and what PyTorch makes when it first runs an operation."""


def host_memory_bytes(step: TrainingStep, programs: Mapping[ProgramName, Program], plan: Plan, codegen: Codegen) -> int:
    """The bound: activations and operations, and as much of what is trained as is resident."""
    is_streamed = plan.mode == Mode.WEIGHT_STREAMING
    held = _held_bytes(step, plan, is_streamed=is_streamed)
    updates = [_update_bytes(update) for update in step.updates]
    segments = segments_of(programs, plan) if is_streamed and codegen == "inductor" else {}
    living = held + max([_step_bytes(programs, segments, is_streamed=is_streamed), *updates])
    return math.ceil(living * (1 + WORKSPACE_SHARE)) + WORKSPACE_BYTES


def _held_bytes(step: TrainingStep, plan: Plan, *, is_streamed: bool) -> int:
    """Parameters, gradients and state that are in memory while a layer runs."""
    parameters = {spec.name: _spec_bytes(spec) for spec in step.parameters}
    gradients = {name: size for name, size in parameters.items() if name in step.trained}
    if not is_streamed:
        state = 4 * sum(step.state_elements.values())
        return sum(parameters.values()) + 2 * sum(gradients.values()) + state  # autograd's gradient, and the store's
    layers = [sum(parameters.get(n, 0) + gradients.get(n, 0) for n in layer.weights) for layer in plan.layers]
    # A layer's last weights are let go when the next one's first are there.
    return max((sum(layers[place : place + 2]) for place in range(len(layers))), default=0)


def _spec_bytes(spec: TensorSpec) -> int:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return math.prod(spec.shape) * dtype.itemsize


def _step_bytes(
    programs: Mapping[ProgramName, Program], segments: Mapping[ProgramName, list[Segment]], *, is_streamed: bool
) -> int:
    """The most that lives in forward, loss or backward; a gradient that streams goes to the store as it comes.

    Of segments that code was generated for, the results live to the end of theirs.
    """
    forward, loss, backward = (programs[n] for n in (ProgramName.FORWARD, ProgramName.LOSS, ProgramName.BACKWARD))
    outputs = sum(
        _bytes(node)
        for node, role in zip(output_nodes(forward.graph_module), forward.outputs, strict=True)
        if node is not None and role.startswith("output:")
    )
    in_forward, kept = peak_bytes(forward.graph_module, segments=segments.get(ProgramName.FORWARD, ()))
    in_loss = sum(_bytes(node) for node in loss.graph_module.graph.nodes if _makes_memory(node))  # autograd keeps it
    weights = weights_handed_on(forward.graph_module, forward.inputs, forward.outputs)
    given = [role for role in backward.inputs if role not in weights]
    counted = [backward.inputs.index(role) for role in given]
    in_backward, _ = peak_bytes(
        backward.graph_module, counted, returns=not is_streamed, segments=segments.get(ProgramName.BACKWARD, ())
    )
    return max(in_forward, kept + in_loss + 2 * outputs, in_backward + outputs + in_loss)


def _update_bytes(update: Update) -> int:
    """Of a flat update the operations on a chunk, and what is held of each kind until it is let go."""
    program = update.program.graph_module
    in_update, _ = peak_bytes(program)
    values = placeholder_values(program)
    inputs = sum(value.nbytes for value in values)
    if not update.elementwise:
        return in_update + inputs
    elements = max(value.numel() for value in values)
    return (in_update * CHUNK_ELEMENTS + inputs * LET_GO_ELEMENTS) // elements


def peak_bytes(
    program: GraphModule,
    counted_inputs: Collection[int] = (),
    *,
    returns: bool = True,
    segments: Sequence[Segment] = (),
) -> tuple[int, int]:
    """The most that lives at one time, and what lives at the end: what the program returns, if it does.

    A view lives in the memory of what it views. Of the inputs those of these numbers count, until their last use. What
    goes out of a segment lives to its end, if not longer.
    """
    nodes = list(program.graph.nodes)
    owner: dict[Node, Node] = {}
    last_use: Counter[Node] = Counter()
    for place, node in enumerate(nodes):
        last_use[node] = place
        owner[node] = node if _makes_memory(node) or not node.all_input_nodes else owner[node.all_input_nodes[0]]
        for read in node.all_input_nodes if returns or node.op != "output" else []:
            last_use[owner[read]] = place
    places = {node: place for place, node in enumerate(nodes)}
    for segment in segments:
        for node in segment.outputs:
            last_use[owner[node]] = max(last_use[owner[node]], places[segment.last])
    inputs = [node for node in nodes if node.op == "placeholder"]
    sizes = {node: _bytes(node) for node in nodes if _makes_memory(node)}
    sizes |= {inputs[number]: _bytes(inputs[number]) for number in counted_inputs}
    ending: dict[int, list[Node]] = {}
    for node in sizes:
        ending.setdefault(last_use[node], []).append(node)
    living = peak = sum(sizes[node] for node in inputs if node in sizes)
    for place, node in enumerate(nodes[:-1]):
        living += sizes[node] if node in sizes and node.op != "placeholder" else 0
        peak = max(peak, living)
        living -= sum(sizes[one] for one in ending.get(place, []))
    return peak, living


def _makes_memory(node: Node) -> bool:
    """Whether the node's result has memory of its own."""
    return isinstance(node.target, OpOverload) and not node.target.is_view


def _bytes(node: Node) -> int:
    return sum(value.nbytes for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor))
