"""Which kernel of the library covers an ATen operation, what work it is, and how many multiply-adds it takes."""

import math
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Node

from cerebras_wafer.compiler.ir.kernels import EXTENTS, KernelKind
from cerebras_wafer.hardware.work import WorkClass


class Cover(NamedTuple):
    """The kernel that covers an operation; `work` is None where elements are not counted."""

    kind: KernelKind
    work: WorkClass | None


_NAMES: dict[Cover, str] = {
    Cover(KernelKind.MATMUL, None): "mm addmm bmm baddbmm linear matmul mv dot addmv",
    Cover(KernelKind.CONV2D, None): "convolution convolution_backward",
    Cover(KernelKind.ATTENTION, WorkClass.SCORE): (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu"
        " _scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    Cover(KernelKind.NORM, WorkClass.NORM): (
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training native_batch_norm"
        " native_batch_norm_backward native_layer_norm native_layer_norm_backward native_group_norm"
        " native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward layer_norm batch_norm"
    ),
    Cover(KernelKind.SOFTMAX, WorkClass.SOFTMAX): "_softmax _softmax_backward_data softmax _safe_softmax",
    Cover(KernelKind.ELEMENTWISE, WorkClass.ACTIVATION): (
        "gelu gelu_backward silu silu_backward tanh tanh_backward sigmoid sigmoid_backward elu elu_backward"
        " softplus softplus_backward exp expm1 log log1p mish mish_backward erf sin cos pow"
    ),
    Cover(KernelKind.ELEMENTWISE, WorkClass.DROPOUT): "native_dropout native_dropout_backward bernoulli rand_like",
    Cover(KernelKind.REDUCTION, WorkClass.POOLING): (
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward"
        " _adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool2d avg_pool1d"
        " upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward"
    ),
    Cover(KernelKind.REDUCTION, WorkClass.REDUCTION): (
        "sum mean amax amin max min var var_mean std linalg_vector_norm cumsum argmax argmin all any prod"
        " logsumexp norm"
    ),
    Cover(KernelKind.EMBEDDING, WorkClass.EMBEDDING): (
        "embedding embedding_dense_backward gather scatter_add scatter index index_select index_put index_add"
        " select_scatter slice_scatter slice_backward select_backward"
    ),
    Cover(KernelKind.LOSS, WorkClass.LOSS): (
        "_log_softmax _log_softmax_backward_data nll_loss_forward nll_loss_backward cross_entropy_loss"
        " nll_loss2d_forward nll_loss2d_backward nll_loss_nd log_softmax nll_loss mse_loss mse_loss_backward"
        " binary_cross_entropy_with_logits binary_cross_entropy smooth_l1_loss smooth_l1_loss_backward huber_loss"
        " l1_loss kl_div"
    ),
    Cover(KernelKind.LAYOUT, None): (
        "view _unsafe_view reshape t transpose permute expand unsqueeze squeeze slice select detach alias clone cat"
        " stack split split_with_sizes unbind flatten full zeros ones empty zeros_like ones_like full_like empty_like"
        " new_zeros new_ones new_full scalar_tensor arange constant_pad_nd repeat _to_copy to round_to lift_fresh_copy"
        " lift_fresh copy tril triu roll flip contiguous chunk T view_as expand_as pixel_shuffle pixel_unshuffle"
        " as_strided new_empty fill diagonal numpy_T unflatten movedim _assert_tensor_metadata repeat_interleave"
    ),
}
_COVER_OF_NAME = {name: cover for cover, names in _NAMES.items() for name in names.split()}
_POINTWISE = Cover(KernelKind.ELEMENTWISE, WorkClass.ELEMENTWISE)

# Results that share the memory of what they were made from.
VIEWS = frozenset(
    {
        "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice",
        "select", "detach", "alias", "split", "split_with_sizes", "unbind", "flatten", "view_as", "expand_as",
        "as_strided", "numpy_T", "T", "unflatten", "movedim", "_to_copy", "round_to",
    }
)  # fmt: skip


def covered_by(operation: OpOverload) -> Cover | None:
    """The kernel that covers an operation, or None where the library has none."""
    cover = _COVER_OF_NAME.get(base_name(operation))
    return cover or (_POINTWISE if torch.Tag.pointwise in operation.tags else None)


def base_name(operation: OpOverload) -> str:
    """`relu` for `aten.relu_.default`."""
    return operation._schema.name.split("::")[1].rstrip("_")


def elements(node: Node) -> int:
    """Elements an operation works on: those of its result, or of what it reduces; never those of a whole table."""
    assert isinstance(node.target, OpOverload)
    result = math.prod(shape_of(node))
    cover = covered_by(node.target)
    read = [math.prod(shape_of(source)) for source in node.all_input_nodes]
    if cover and cover.kind == KernelKind.REDUCTION:
        return max(result, *read[:1], 0)
    if cover and cover.kind == KernelKind.EMBEDDING:
        return read[0] if base_name(node.target).endswith("backward") else result
    if cover and cover.kind == KernelKind.ATTENTION:
        return _scores(node)
    return result


def multiply_adds(node: Node) -> int:
    """Multiply-adds of one operation, from the shapes it was traced with; 0 where it has none."""
    assert isinstance(node.target, OpOverload)
    shapes = [shape_of(argument) for argument in node.args]
    match base_name(node.target):
        case "mm" | "bmm" | "linear" | "matmul" | "mv" | "dot":
            return math.prod(shape_of(node)) * shapes[0][-1]
        case "addmm" | "baddbmm" | "addmv":
            return math.prod(shape_of(node)) * shapes[1][-1]
        case "convolution":
            return math.prod(_convolved(node, shape_of(node), shapes[0])) * math.prod(shapes[1][1:])
        case "convolution_backward":
            wanted = node.args[-1]
            assert isinstance(wanted, (list, tuple))
            places = math.prod(_convolved(node, shapes[0], shapes[1]))
            return places * math.prod(shapes[2][1:]) * sum(bool(want) for want in wanted[:2])
        case name if "scaled_dot_product" in name:
            # two matrix products forward, five backward, each of score x width of a head
            return _scores(node) * shapes[0][-1] * (5 if name.endswith("backward") else 2)
    return 0


def extents(node: Node) -> tuple[tuple[str, int], ...]:
    """The named extents of a heavy operation of forward; none for others."""
    assert isinstance(node.target, OpOverload)
    shapes = [shape_of(argument) for argument in node.args]
    result = shape_of(node)
    match base_name(node.target):
        case "mm" | "linear" | "matmul" | "bmm":
            return _matmul_extents(result, shapes[0][-1])
        case "addmm" | "baddbmm":
            return _matmul_extents(result, shapes[1][-1])
        case "convolution":
            groups = node.args[8]
            assert isinstance(groups, int)
            batch, channels_out = result[:2]
            height, width = (*_convolved(node, result, shapes[0])[2:], 1)[:2]
            kernel_height, kernel_width = (*shapes[1][2:], 1)[:2]
            values = (batch, shapes[0][1], channels_out, groups, kernel_height, kernel_width, height, width)
            return _named(KernelKind.CONV2D, values)
        case name if "scaled_dot_product" in name and not name.endswith("backward"):
            batch, heads, query, width = shapes[0]
            return _named(KernelKind.ATTENTION, (batch, heads, query, shapes[1][-2], width))
    return ()


def _convolved(node: Node, result: tuple[int, ...], given: tuple[int, ...]) -> tuple[int, ...]:
    """Where the kernel of a convolution is applied: at each place of its result; transposed, of what it is given."""
    transposed = node.args[6 if base_name(node.target) == "convolution" else 7]  # type: ignore[arg-type]
    return given if transposed else result


def shape_of(value: object) -> tuple[int, ...]:
    """Shape of the (first) tensor that an argument was traced with; empty for what is no tensor."""
    if not isinstance(value, Node):
        return ()
    tensor = first_tensor(value)
    return () if tensor is None else tuple(tensor.shape)


def first_tensor(node: Node) -> torch.Tensor | None:
    """The (first) tensor that a node results in, as it was traced."""
    traced = node.meta.get("val")
    parts = traced if isinstance(traced, (tuple, list)) else [traced]
    return next((part for part in parts if isinstance(part, torch.Tensor)), None)


def _matmul_extents(result: tuple[int, ...], inner: int) -> tuple[tuple[str, int], ...]:
    *batch, rows, columns = result
    return _named(KernelKind.MATMUL, (math.prod(batch), rows, inner, columns))


def _named(kind: KernelKind, values: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    return tuple(zip(EXTENTS[kind], values, strict=True))


def _scores(node: Node) -> int:
    """Entries of the attention matrices: batch x heads x query x key."""
    assert isinstance(node.target, OpOverload)
    backward = base_name(node.target).endswith("backward")
    query, key = (shape_of(argument) for argument in node.args[1 if backward else 0 :][:2])
    return math.prod(query[:-1]) * key[-2]
