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
    Cover(KernelKind.MATMUL, None): "mm addmm bmm baddbmm linear matmul mv dot vdot addmv _trilinear",
    Cover(KernelKind.CONV2D, None): "convolution convolution_backward",
    Cover(KernelKind.ATTENTION, WorkClass.SCORE): (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu"
        " _scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    Cover(KernelKind.NORM, WorkClass.NORM): (
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training native_batch_norm"
        " native_batch_norm_backward native_layer_norm native_layer_norm_backward native_group_norm"
        " native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward layer_norm batch_norm"
        " _native_batch_norm_legit _weight_norm_interface _weight_norm_interface_backward renorm"
    ),
    Cover(KernelKind.SOFTMAX, WorkClass.SOFTMAX): "_softmax _softmax_backward_data softmax _safe_softmax",
    Cover(KernelKind.ELEMENTWISE, WorkClass.ACTIVATION): (
        "gelu gelu_backward silu silu_backward tanh tanh_backward sigmoid sigmoid_backward elu elu_backward"
        " softplus softplus_backward exp expm1 log log1p mish mish_backward erf sin cos pow glu glu_backward"
        " log_sigmoid_forward log_sigmoid_backward hardswish hardswish_backward hardsigmoid_backward"
    ),
    # Piecewise linear ones cost no more than a sum; PyTorch does not mark these as pointwise.
    Cover(KernelKind.ELEMENTWISE, WorkClass.ELEMENTWISE): (
        "hardtanh_backward leaky_relu_backward _prelu_kernel _prelu_kernel_backward rrelu_with_noise_backward"
        " linalg_cross addr"
    ),
    # Whatever draws a random number for each element of its result.
    Cover(KernelKind.ELEMENTWISE, WorkClass.DROPOUT): (
        "native_dropout native_dropout_backward bernoulli rand rand_like randn randn_like randint randint_like normal"
        " normal_functional uniform exponential log_normal cauchy geometric rrelu_with_noise"
        " rrelu_with_noise_functional"
    ),
    Cover(KernelKind.REDUCTION, WorkClass.POOLING): (
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward"
        " _adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool2d avg_pool1d"
        " avg_pool3d avg_pool3d_backward max_pool3d_with_indices max_pool3d_with_indices_backward"
        " _adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward"
        " adaptive_max_pool3d adaptive_max_pool3d_backward"
        " upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward"
        " upsample_nearest3d upsample_nearest3d_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward"
        " _upsample_nearest_exact2d _upsample_nearest_exact2d_backward _upsample_nearest_exact3d"
        " _upsample_nearest_exact3d_backward upsample_linear1d upsample_linear1d_backward"
        " upsample_bilinear2d upsample_bilinear2d_backward upsample_trilinear3d upsample_trilinear3d_backward"
        " upsample_bicubic2d upsample_bicubic2d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward"
        " _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward"
    ),
    Cover(KernelKind.REDUCTION, WorkClass.REDUCTION): (
        "sum mean amax amin max min var var_mean std linalg_vector_norm cumsum argmax argmin all any prod"
        " logsumexp norm std_mean aminmax count_nonzero nansum dist trace"
        # a prefix of any associative operation takes the steps of a sum
        " cumprod logcumsumexp cummax cummin"
        # several places of the result come from one place, so that its gradient is their sum
        " col2im unfold_backward reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"
        " replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"
    ),
    Cover(KernelKind.EMBEDDING, WorkClass.EMBEDDING): (
        "embedding embedding_dense_backward gather scatter_add scatter index index_select index_put index_add"
        " select_scatter slice_scatter slice_backward select_backward _unsafe_index _unsafe_index_put index_copy"
        " index_fill take put max_unpool2d max_unpool3d _embedding_bag _embedding_bag_forward_only"
        " _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward"
    ),
    Cover(KernelKind.LOSS, WorkClass.LOSS): (
        "_log_softmax _log_softmax_backward_data nll_loss_forward nll_loss_backward cross_entropy_loss"
        " nll_loss2d_forward nll_loss2d_backward nll_loss_nd log_softmax nll_loss mse_loss mse_loss_backward"
        " binary_cross_entropy_with_logits binary_cross_entropy smooth_l1_loss smooth_l1_loss_backward huber_loss"
        " l1_loss kl_div soft_margin_loss soft_margin_loss_backward multi_margin_loss multi_margin_loss_backward"
        " multilabel_margin_loss_forward multilabel_margin_loss_backward"
    ),
    Cover(KernelKind.LAYOUT, None): (
        "view _unsafe_view reshape t transpose permute expand unsqueeze squeeze slice select detach alias clone cat"
        " stack split split_with_sizes unbind flatten full zeros ones empty zeros_like ones_like full_like empty_like"
        " new_zeros new_ones new_full scalar_tensor arange constant_pad_nd repeat _to_copy to round_to lift_fresh_copy"
        " lift_fresh copy tril triu roll flip contiguous chunk T view_as expand_as pixel_shuffle pixel_unshuffle"
        " as_strided new_empty fill diagonal numpy_T unflatten movedim _assert_tensor_metadata repeat_interleave"
        " unsafe_split unsafe_split_with_sizes unsafe_chunk new_empty_strided empty_strided empty_permuted unfold"
        " im2col channel_shuffle native_channel_shuffle diag_embed diagonal_copy diagonal_scatter diagonal_backward"
        " as_strided_scatter rot90 eye linspace logspace tril_indices triu_indices reflection_pad1d reflection_pad2d"
        " reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
        # checks that PyTorch leaves in a graph; they compute nothing
        " _assert_async _functional_assert_async _assert_scalar sym_size sym_constrain_range_for_size"
    ),
}
_COVER_OF_NAME = {name: cover for cover, names in _NAMES.items() for name in names.split()}
_NO_WORK = Cover(KernelKind.LAYOUT, None)
_POINTWISE = Cover(KernelKind.ELEMENTWISE, WorkClass.ELEMENTWISE)

# Results that share the memory of what they were made from.
VIEWS = frozenset(
    {
        "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice",
        "select", "detach", "alias", "split", "split_with_sizes", "unbind", "flatten", "view_as", "expand_as",
        "as_strided", "numpy_T", "T", "unflatten", "movedim", "_to_copy", "round_to", "unsafe_split",
        "unsafe_split_with_sizes", "unsafe_chunk", "unfold",
    }
)  # fmt: skip


def covered_by(operation: OpOverload) -> Cover | None:
    """The kernel that covers an operation, or None where the library has none."""
    if operation.namespace == "prim":
        return _NO_WORK  # asks for a device or a layout
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
    if base_name(node.target).startswith("_embedding_bag"):
        return _summed_in_bags(node)
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
        case "mm" | "bmm" | "linear" | "matmul" | "mv" | "dot" | "vdot":
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
        case "_trilinear":
            return 2 * _space_of_trilinear(node)
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
            height, width = _plane(_convolved(node, result, shapes[0])[2:])
            kernel_height, kernel_width = _plane(shapes[1][2:])
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


def _plane(spatial: tuple[int, ...]) -> tuple[int, int]:
    """Spatial extents as height and width, so that one kernel covers convolutions of every dimension.

    The implicit matrix product counts places and weights only, so that all but the last extent of a volume fold
    into the height; a line is one column wide.
    """
    if len(spatial) == 1:
        return spatial[0], 1
    return math.prod(spatial[:-1]), math.prod(spatial[-1:])


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


def _summed_in_bags(node: Node) -> int:
    """Elements of the rows that an embedding bag sums: rows looked up x width of the table."""
    assert isinstance(node.target, OpOverload)
    shapes = {
        described.name: shape_of(argument)
        for described, argument in zip(node.target._schema.arguments, node.args, strict=False)
    }
    table = shapes.get("weight", ()) or shapes["grad"]  # a gradient and the table have the same width
    return math.prod(shapes["indices"]) * table[-1]


def _space_of_trilinear(node: Node) -> int:
    """Places where three operands, each widened by extents of one, are multiplied and summed."""
    operands, widened = node.args[:3], node.args[3:6]
    space: list[int] = []
    for operand, places in zip(operands, widened, strict=True):
        shape = list(shape_of(operand))
        assert isinstance(places, (list, tuple))
        for place in places:
            shape.insert(int(place), 1)
        space = [max(pair) for pair in zip(space or shape, shape, strict=True)]
    return math.prod(space)
