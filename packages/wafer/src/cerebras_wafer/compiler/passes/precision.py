"""Choose precision: round values to the compute type where kernels meet.

Half precision is computed in float32 and rounded at kernel edges, because native half precision on a CPU is
about a hundred times slower. Weights, sums inside a kernel and the optimizer's state stay float32.
"""

import operator

import torch
from torch.fx import Graph, Node

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_wafer.compiler.frontends.training_step import Program

aten = torch.ops.aten

# Given rounded inputs these yield rounded outputs, so that rounding again would change nothing.
EXACT_OPERATIONS = frozenset(
    {
        aten.relu.default, aten.threshold_backward.default, aten.neg.default, aten.abs.default,
        aten.max_pool2d_with_indices.default, aten.embedding.default, aten.where.self, aten.clone.default,
        aten.detach.default, aten.alias.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default,
        aten.t.default, aten.transpose.int, aten.permute.default, aten.expand.default, aten.unsqueeze.default,
        aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.cat.default,
        aten.split.Tensor, aten.unbind.int, aten.index.Tensor, aten.full.default, aten.zeros_like.default,
        aten.ones_like.default, aten.scalar_tensor.default, aten.arange.default,
    }
)  # fmt: skip

# Statistics of a normalisation (mean, variance) stay float32: only its first result is rounded.
STATISTICS_OPERATIONS = frozenset(
    {
        aten._native_batch_norm_legit_functional.default, aten.native_batch_norm.default,
        aten.native_layer_norm.default, aten.native_group_norm.default,
    }
)  # fmt: skip


def round_at_kernel_edges(program: Program, precision: PrecisionSpec) -> None:
    """Insert rounding after every input and kernel of a program; nothing to do for float32."""
    if precision.compute_dtype == "float32":
        return
    dtype = getattr(torch, precision.compute_dtype)
    graph = program.graph_module.graph
    placeholders = _placeholders(graph)
    keep_exact = {node for node, role in zip(placeholders, program.inputs, strict=True) if _is_buffer(role)}
    for node in list(graph.nodes):
        if node not in keep_exact and _needs_rounding(node):
            _round(graph, node, dtype)
    program.graph_module.recompile()


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _is_buffer(role: str) -> bool:
    return role.startswith("buffer:")


def _needs_rounding(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return False
    if node.op == "placeholder":
        return True
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, Node)
        return not (source.target in STATISTICS_OPERATIONS and index != 0)
    return node.target not in EXACT_OPERATIONS


def _round(graph: Graph, node: Node, dtype: torch.dtype) -> None:
    """Let every user of `node` see it rounded to `dtype` and back."""
    place = _first_place(graph, node)
    with graph.inserting_before(place):
        narrow = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
        wide = graph.call_function(aten._to_copy.default, (narrow,), {"dtype": torch.float32})
    for rounding in (narrow, wide):
        rounding.meta = {
            **(place if node.op == "placeholder" else node).meta,
            "val": node.meta["val"],
            "rounding": True,
        }
    narrow.meta["val"] = node.meta["val"].to(dtype)
    node.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not narrow)


def _first_place(graph: Graph, node: Node) -> Node:
    """Behind the node; for an input, before its first use, so that what backward alone reads stays in backward."""
    if node.op != "placeholder":
        return node.next
    return next((other for other in graph.nodes if other in node.users), graph.output_node())
