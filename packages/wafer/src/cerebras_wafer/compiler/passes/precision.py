"""Choose precision: round values to the compute format where kernels meet, and scale gradients inside backward.

Half precision is computed in float32 and rounded at kernel edges, because native half precision on a CPU is
about a hundred times slower. Weights, sums inside a kernel and the optimizer's state stay float32. Every ATen
operation counts as a kernel. What is rounded is the level's to say:

0   what products multiply: the operands of matrix products, convolutions and attention
1   also the result of every operation but a softmax (float32 reductions in attention)
2   the result of every operation
"""

import operator

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from cerebras_contract.artifacts import ComputeFormat, PrecisionSpec
from cerebras_wafer.compiler.frontends.training_step import SCALE, Program
from cerebras_wafer.compiler.passes.operations import base_name
from cerebras_wafer.simulator.rounding import round_to

aten = torch.ops.aten

# Given rounded inputs these yield rounded outputs, so that rounding again would change nothing.
EXACT_OPERATIONS = frozenset(
    {
        aten.relu.default, aten.threshold_backward.default, aten.neg.default, aten.abs.default,
        aten.max_pool2d_with_indices.default, aten.embedding.default, aten.where.self, aten.clone.default,
        aten.detach.default, aten.alias.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default,
        aten.t.default, aten.transpose.int, aten.permute.default, aten.expand.default, aten.unsqueeze.default,
        aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.cat.default,
        aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.stack.default, aten.index.Tensor,
        aten.squeeze.default, aten.slice_backward.default, aten.select_backward.default, aten.repeat.default,
        aten.maximum.default, aten.minimum.default, aten.amax.default, aten.amin.default, aten.tril.default,
        aten.triu.default, aten.full.default, aten.zeros_like.default, aten.ones_like.default,
        aten.scalar_tensor.default, aten.arange.default,
    }
)  # fmt: skip

# Statistics (mean and variance of a norm, the logarithm of attention's sums) stay float32: only the first result
# of these is rounded.
STATISTICS_OPERATIONS = frozenset(
    {
        aten._native_batch_norm_legit_functional.default, aten.native_batch_norm.default,
        aten.native_layer_norm.default, aten.native_group_norm.default, aten._fused_rms_norm.default,
        aten._native_batch_norm_legit_no_training.default, aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats,
    }
)  # fmt: skip

# Reductions that level 1 leaves in float32.
SOFTMAX_OPERATIONS = frozenset(
    {
        aten._softmax.default, aten._softmax_backward_data.default, aten._safe_softmax.default,
        aten._log_softmax.default, aten._log_softmax_backward_data.default, aten.logsumexp.default,
    }
)  # fmt: skip

# By operation, the places of the arguments that it multiplies. A bias is added to the float32 sum as it is.
MULTIPLIED: dict[str, tuple[int, ...]] = {
    "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "vdot": (0, 1), "_trilinear": (0, 1, 2),
    "linear": (0, 1), "matmul": (0, 1),
    "addmm": (1, 2), "baddbmm": (1, 2), "addmv": (1, 2),
    "convolution": (0, 1), "convolution_backward": (0, 1, 2),
    "_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (0, 1, 2, 3),
}  # fmt: skip


def round_at_kernel_edges(program: Program, precision: PrecisionSpec) -> None:
    """Insert rounding as the level says; nothing to do for float32."""
    if precision.compute_dtype == ComputeFormat.FLOAT32:
        return
    graph, level = program.graph_module.graph, precision.precision_opt_level
    if level > 0:
        kept = SOFTMAX_OPERATIONS if level == 1 else frozenset()
        statistics = _running_statistics(program)
        for node in list(graph.nodes):
            if node not in statistics and _leaves_a_kernel(node, kept):
                _round_for_all(graph, node, precision.compute_dtype)
    _round_operands(graph, precision.compute_dtype)
    program.graph_module.recompile()


def scale_gradients(backward: Program) -> Program:
    """Multiply the gradients that come in by a loss scale, the last input, and divide those that go out by it.

    So small gradients survive rounding in between. The scale is a float32 tensor without dimensions.
    """
    graph = backward.graph_module.graph
    placeholders = _placeholders(graph)
    with graph.inserting_after(placeholders[-1]):
        scale = graph.placeholder("loss_scale")
    scale.meta["val"] = placeholders[0].meta["val"].new_empty((), dtype=torch.float32)
    for node, role in zip(placeholders, backward.inputs, strict=True):
        if role.startswith("tangent:"):
            with graph.inserting_after(scale):
                scaled = graph.call_function(aten.mul.Tensor, (node, scale))
            scaled.meta = dict(node.meta)
            node.replace_all_uses_with(scaled, delete_user_cb=lambda user, new=scaled: user is not new)  # type: ignore[misc]
    output = graph.output_node()
    for gradient in list(output.all_input_nodes):
        with graph.inserting_after(scale if gradient.op == "placeholder" else gradient):
            unscaled = graph.call_function(aten.div.Tensor, (gradient, scale))
        unscaled.meta = {key: value for key, value in gradient.meta.items() if key != "rounding"}
        output.replace_input_with(gradient, unscaled)
    backward.graph_module.recompile()
    return Program(backward.graph_module, (*backward.inputs, SCALE), backward.outputs)


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _running_statistics(program: Program) -> set[Node]:
    placeholders = _placeholders(program.graph_module.graph)
    return {node for node, role in zip(placeholders, program.inputs, strict=True) if role.startswith("buffer:")}


def _is_float32(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _leaves_a_kernel(node: Node, kept: frozenset[OpOverload]) -> bool:
    """Whether a value has to be rounded where it comes into the program or leaves the operation that made it."""
    if not _is_float32(node):
        return False
    if node.op == "placeholder":
        return not _is_only_looked_up(node)
    if node.op != "call_function" or node.target in kept:
        return False
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, Node)
        is_statistic = source.target in STATISTICS_OPERATIONS and index != 0
        return source.target not in EXACT_OPERATIONS and not is_statistic
    if node.target == aten.embedding.default:
        return not _is_rounding(node.all_input_nodes[0])
    return node.target not in EXACT_OPERATIONS


def _is_only_looked_up(table: Node) -> bool:
    """A table of which a step reads a few rows: these are rounded, and not the table."""
    return all(user.target == aten.embedding.default for user in table.users)


def _is_rounding(node: Node) -> bool:
    return bool(node.meta.get("rounding"))


def _round_operands(graph: Graph, compute_format: ComputeFormat) -> None:
    """Round what products multiply where it is not rounded yet: once for all products that read a value."""
    rounded: set[Node] = set()
    made: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if _is_rounding(node) or _keeps_rounded(node, rounded):
            rounded.add(node)
        for place in MULTIPLIED.get(base_name(node.target), ()) if isinstance(node.target, OpOverload) else ():
            operand = node.args[place]
            if isinstance(operand, Node) and _is_float32(operand) and operand not in rounded:
                if operand not in made:
                    made[operand] = _rounding_of(graph, operand, compute_format)
                node.update_arg(place, made[operand])


def _keeps_rounded(node: Node, rounded: set[Node]) -> bool:
    """Whether a value is one of the format because all that it is made of is."""
    if node.target is operator.getitem:
        return node.all_input_nodes[0] in rounded
    sources = [source for source in node.all_input_nodes if _is_float32(source)]
    return node.target in EXACT_OPERATIONS and bool(sources) and rounded.issuperset(sources)


def _round_for_all(graph: Graph, node: Node, compute_format: ComputeFormat) -> None:
    """Let every user of `node` see it rounded."""
    rounding = _rounding_of(graph, node, compute_format)
    node.replace_all_uses_with(rounding, delete_user_cb=lambda user: user is not rounding)


def _rounding_of(graph: Graph, node: Node, compute_format: ComputeFormat) -> Node:
    place = _first_place(graph, node)
    with graph.inserting_before(place):
        rounding = graph.call_function(round_to, (node, compute_format.value))
    described_by = place if node.op in ("placeholder", "get_attr") else node
    rounding.meta = {**described_by.meta, "val": node.meta["val"], "rounding": True}
    return rounding


def _first_place(graph: Graph, node: Node) -> Node:
    """Behind the node; for an input, before its first use, so that what backward alone reads stays in backward."""
    if node.op != "placeholder":
        return node.next
    return next((other for other in graph.nodes if other in node.users), graph.output_node())
