"""Which kernel of the library an ATen operation belongs to, and how many multiply-adds it takes."""

import math

import torch
from torch._ops import OpOverload
from torch.fx import Node

from cerebras_wafer.compiler.ir.kernels import KernelKind

_KINDS: dict[KernelKind, frozenset[str]] = {
    KernelKind.MATMUL: frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "mv", "dot", "addmv"}),
    KernelKind.CONV2D: frozenset({"convolution", "convolution_backward"}),
    KernelKind.ATTENTION: frozenset(
        {
            "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_attention_math",
        }
    ),
    KernelKind.NORM: frozenset(
        {
            "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "native_batch_norm",
            "native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
            "native_group_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "layer_norm", "batch_norm",
        }
    ),
    KernelKind.SOFTMAX: frozenset({"_softmax", "_softmax_backward_data", "softmax", "_safe_softmax"}),
    KernelKind.ACTIVATION: frozenset(
        {
            "gelu", "gelu_backward", "silu", "silu_backward", "tanh", "tanh_backward", "sigmoid", "sigmoid_backward",
            "elu", "elu_backward", "softplus", "softplus_backward", "exp", "mish", "mish_backward", "erf",
        }
    ),
    KernelKind.DROPOUT: frozenset({"native_dropout", "native_dropout_backward", "bernoulli", "rand_like"}),
    KernelKind.POOLING: frozenset(
        {
            "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
            "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest2d", "max_pool2d", "avg_pool1d",
            "upsample_nearest2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward",
        }
    ),
    KernelKind.REDUCTION: frozenset(
        {"sum", "mean", "amax", "amin", "max", "min", "var", "var_mean", "std", "linalg_vector_norm", "cumsum",
         "argmax", "argmin", "all", "any", "prod", "logsumexp", "norm"}
    ),
    KernelKind.EMBEDDING: frozenset(
        {"embedding", "embedding_dense_backward", "gather", "scatter_add", "scatter", "index", "index_select",
         "index_put", "index_add", "select_scatter", "slice_scatter", "slice_backward", "select_backward"}
    ),
    KernelKind.LOSS: frozenset(
        {
            "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward", "cross_entropy_loss",
            "nll_loss2d_forward", "nll_loss2d_backward", "nll_loss_nd", "log_softmax", "nll_loss", "mse_loss",
            "mse_loss_backward", "binary_cross_entropy_with_logits", "binary_cross_entropy", "smooth_l1_loss",
            "smooth_l1_loss_backward", "huber_loss", "l1_loss", "kl_div",
        }
    ),
    KernelKind.LAYOUT: frozenset(
        {
            "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice",
            "select", "detach", "alias", "clone", "cat", "stack", "split", "split_with_sizes", "unbind", "flatten",
            "full", "zeros", "ones", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros",
            "new_ones", "new_full", "scalar_tensor", "arange", "constant_pad_nd", "repeat", "_to_copy", "to",
            "lift_fresh_copy", "lift_fresh", "copy", "tril", "triu", "roll", "flip", "contiguous", "chunk", "T",
            "view_as", "expand_as", "pixel_shuffle", "pixel_unshuffle", "as_strided", "new_empty", "fill",
            "diagonal", "numpy_T", "unflatten", "movedim", "_assert_tensor_metadata",
        }
    ),
}  # fmt: skip
_KIND_OF_NAME = {name: kind for kind, names in _KINDS.items() for name in names}


def kernel_kind(operation: OpOverload) -> KernelKind | None:
    """The kernel that covers an operation, or None where the library has none."""
    name = operation._schema.name.split("::")[1].rstrip("_")
    if name in _KIND_OF_NAME:
        return _KIND_OF_NAME[name]
    return KernelKind.ELEMENTWISE if torch.Tag.pointwise in operation.tags else None


def multiply_adds(node: Node) -> int:
    """Multiply-adds of one operation, from the shapes it was traced with; 0 where it has none."""
    assert isinstance(node.target, OpOverload)
    name = node.target._schema.name.split("::")[1]
    shapes = [_shape(argument) for argument in node.args]
    match name:
        case "mm" | "bmm" | "linear" | "matmul" | "mv" | "dot":
            return _elements(_shape(node)) * shapes[0][-1]
        case "addmm" | "baddbmm" | "addmv":
            return _elements(_shape(node)) * shapes[1][-1]
        case "convolution":
            return _elements(_shape(node)) * _elements(shapes[1][1:])
        case "convolution_backward":
            wanted = node.args[-1]
            assert isinstance(wanted, (list, tuple))
            return _elements(shapes[0]) * _elements(shapes[2][1:]) * sum(bool(want) for want in wanted[:2])
    if "scaled_dot_product" in name:
        return _attention_multiply_adds(name, shapes)
    return 0


def _attention_multiply_adds(name: str, shapes: list[tuple[int, ...]]) -> int:
    """Two matrix products forward, five backward, each of batch x heads x query x key x width."""
    backward = name.endswith("backward")
    query, key = (shapes[1], shapes[2]) if backward else (shapes[0], shapes[1])
    return _elements(query) * key[-2] * (5 if backward else 2)


def _shape(value: object) -> tuple[int, ...]:
    if not isinstance(value, Node):
        return ()
    traced = value.meta.get("val")
    if isinstance(traced, (tuple, list)):
        traced = traced[0]
    return tuple(traced.shape) if isinstance(traced, torch.Tensor) else ()


def _elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
