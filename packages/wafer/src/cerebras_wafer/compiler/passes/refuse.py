"""Refuse: say every operation that no kernel of the library covers, with its place and what to do instead."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node
from torch.utils import _pytree as pytree

from cerebras_contract.artifacts import ProgramName
from cerebras_contract.errors import ErrorCode, FaultReport
from cerebras_wafer.compiler.frontends.places import module_path, operation_name, source_line
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.compiler.passes.operations import base_name, covered_by
from cerebras_wafer.errors import CompileError

Place = tuple[str, int] | None

PYTORCHS_OWN = frozenset({"aten", "prims", "prim"})
OURS = frozenset({"cerebras_wafer"})  # rounding, which the precision pass inserts
CONTROL_FLOW = frozenset({"cond", "while_loop", "map_impl", "scan", "associative_scan"})


class Refusal(NamedTuple):
    """Why an operation is refused, and what to write instead."""

    code: ErrorCode
    reason: str
    advice: str


def _dynamic(advice: str) -> Refusal:
    return Refusal(ErrorCode.COMPILE_DYNAMIC_SHAPE, "the shape of its result depends on the data", advice)


def _no_kernel(advice: str) -> Refusal:
    return Refusal(ErrorCode.COMPILE_NO_KERNEL, "no kernel covers it", advice)


BOOLEAN_INDEX = _dynamic("Choose with torch.where(mask, x, 0), or multiply by the mask: both keep the shape.")
CUSTOM_OPERATION = Refusal(
    ErrorCode.COMPILE_CUSTOM_OPERATION,
    "it is not one of PyTorch's own operations",
    "A kernel of one's own (C++, CUDA, Triton) does not run on a wafer: write it with PyTorch's operations.",
)
VALUE_READ = Refusal(
    ErrorCode.COMPILE_VALUE_READ,
    "it takes a value out of a tensor inside the compiled step",
    "Keep it a tensor: arithmetic with a tensor of one element needs no .item().",
)
# PyTorch's own code reads a value where it checks its arguments.
_VALUE_CHECKED = VALUE_READ._replace(
    advice=f"{VALUE_READ.advice} nn.GaussianNLLLoss looks at its variance: write it out, as"
    " 0.5 * (var.log() + (output - target).square() / var).mean()."
)
CONTROL_FLOW_REFUSAL = Refusal(
    ErrorCode.COMPILE_DATA_DEPENDENT,
    "a wafer runs one fixed sequence of kernels",
    "Compute both sides and choose with torch.where; give a loop a fixed length.",
)
_ANY_DYNAMIC = _dynamic("Keep shapes fixed: mark what counts with a mask, and choose with torch.where.")
_ANY_OTHER = _no_kernel(
    "Write it with operations that have one: matrix products, convolutions, reductions, elementwise."
)

# Operations that people ask for, and what does the same on a wafer. Names of ATen, without leading and trailing
# underscores; whatever is neither here nor covered by a kernel gets `_ANY_OTHER`.
REFUSED: dict[Refusal, str] = {
    _dynamic("Use the mask itself: torch.where(mask, x, 0) keeps the shape."): ("argwhere masked_select"),
    _dynamic(
        "Use the mask itself: torch.where(mask, x, 0) keeps the shape. nn.AdaptiveLogSoftmaxWithLoss sorts its rows so:"
        " use nn.CrossEntropyLoss over all classes."
    ): "nonzero",
    _dynamic("Find distinct values in the data loader, or count them with torch.nn.functional.one_hot(x, n).sum(0)."): (
        "unique unique2 unique_dim unique_consecutive bincount"
    ),
    _no_kernel(
        "Factorise outside of the training step, or iterate with matrix products (power iteration, Newton-Schulz)."
    ): "svd qr geqrf cholesky cholesky_solve lu_solve inverse pinverse matrix_exp lstsq triangular_solve slogdet det",
    _no_kernel("Take torch.amax or torch.argmax for the largest, or weigh with a softmax; sort in the data loader."): (
        "sort topk kthvalue median nanmedian mode msort argsort searchsorted bucketize histc"
    ),
    _no_kernel("Transform in the data loader, or multiply by the matrix of the transform."): (
        "fft_r2c fft_c2r fft_c2c stft istft"
    ),
    _no_kernel("There are no complex numbers on a wafer: keep real and imaginary parts apart (rotary: cos and sin)."): (
        "view_as_complex view_as_real complex polar real imag angle conj conj_physical"
    ),
    _no_kernel(
        "Draw it in the data loader and give it to the model as an input. To draw a class, take the argmax of logits"
        " plus Gumbel noise (torch.nn.functional.gumbel_softmax)."
    ): "multinomial randperm poisson binomial standard_gamma sample_dirichlet",
    _no_kernel("Draw integers with torch.randint(low, high, size)."): "random",
    _no_kernel("nn.LSTM, nn.GRU and nn.RNN over padded sequences have kernels: mask what is padded."): (
        "mkldnn_rnn_layer thnn_fused_lstm_cell thnn_fused_gru_cell pack_padded_sequence"
        " pad_packed_sequence pack_padded_sequence_backward"
    ),
    _no_kernel("Expand the square: |a - b|^2 = |a|^2 - 2ab + |b|^2 with one matrix product."): (
        "cdist cdist_forward pdist_forward euclidean_dist"
    ),
    _no_kernel("Multiply by torch.nn.functional.one_hot(index), which sums what has the same index."): (
        "scatter_reduce index_reduce segment_reduce"
    ),
    _no_kernel("Deform images in the data loader; nn.Upsample and functional.interpolate have kernels."): (
        "grid_sampler_2d grid_sampler_3d affine_grid_generator"
    ),
    _no_kernel("nn.FractionalMaxPool2d and 3d choose their windows at random: use nn.MaxPool2d or nn.MaxPool3d."): (
        "fractional_max_pool2d fractional_max_pool3d"
    ),
    _no_kernel(
        "nn.CTCLoss follows alignments of a length of their own: train on a label for each frame with"
        " nn.CrossEntropyLoss."
    ): "ctc_loss cudnn_ctc_loss",
    _no_kernel("Gradients are dense on a wafer: build nn.Embedding or nn.EmbeddingBag with sparse=False."): (
        "sparse_coo_tensor_with_dims_and_tensors embedding_sparse_backward embedding_bag_sparse_backward"
    ),
    _no_kernel(
        "nn.Embedding and nn.EmbeddingBag with max_norm change their table in forward: leave max_norm out, and"
        " normalise what was looked up, with torch.nn.functional.normalize."
    ): "embedding_renorm",
    _no_kernel("Choose with torch.where(mask, a, b), where a and b have the shape of the mask."): "masked_scatter",
}
_REFUSAL_OF_NAME = {name: refusal for refusal, names in REFUSED.items() for name in names.split()}
_LINEAR_ALGEBRA = _REFUSAL_OF_NAME["svd"]


def refuse(programs: Mapping[ProgramName, Program]) -> None:
    """Raise `CompileError` with every operation that no kernel covers: one fault a place, forward's first."""
    faults: list[FaultReport] = []
    for program in programs.values():
        known = {(fault.module, fault.file, fault.line) for fault in faults}
        found = faults_of(program.graph_module.graph.nodes)
        faults += [fault for fault in found if (fault.module, fault.file, fault.line) not in known]
    if faults:
        raise CompileError.of_faults(faults, f"{len(faults)} operations of the training step have no kernel")


def faults_of(nodes: Iterable[Node]) -> list[FaultReport]:
    """What is refused in a graph, in its order; the same operation of one line is one fault."""
    found = [
        fault_of(operation_name(node.target), refusal, module_path(node), source_line(node))
        for node in nodes
        if node.op == "call_function" and (refusal := _refusal_of_node(node))
    ]
    return list({fault.model_dump_json(): fault for fault in found}.values())


def dynamic_shapes_of(nodes: Iterable[Node]) -> list[FaultReport]:
    """The operations of a graph, of whatever level, with which a shape that depends on the data begins."""
    return [
        fault_of(operation_name(node.target), _ANY_DYNAMIC, module_path(node), source_line(node))
        for node in nodes
        if isinstance(node.target, OpOverload) and _makes_symbols(node)
    ]


def fault_of(operation: str, refusal: Refusal, module: str, place: Place) -> FaultReport:
    """The fault of one operation at one place."""
    file, line = place or (None, None)
    return FaultReport(
        code=refusal.code,
        message=f"{operation} in {f'module {module}' if module else 'the model'}: {refusal.reason}",
        file=file,
        line=line,
        advice=refusal.advice,
        operation=operation,
        module=module,
    )


def refusal_of(operation: OpOverload, arguments: Sequence[Any]) -> Refusal | None:
    """Why an operation on these arguments (tensors, or anything with their dtype) is refused; None: it is not."""
    if operation.namespace not in PYTORCHS_OWN | OURS:
        return CUSTOM_OPERATION
    if operation.namespace == "prim":
        return None  # asks for a device or a layout, computes nothing
    name = base_name(operation).lstrip("_")
    if name in ("index", "index_put") and _has_boolean_index(name, arguments):
        return BOOLEAN_INDEX
    if name == "local_scalar_dense":
        return _VALUE_CHECKED
    if name in ("item", "equal", "is_nonzero", "allclose"):
        return VALUE_READ
    if name in ("assert_scalar", "assert_async", "assert_tensor_metadata", "sym_size", "sym_constrain_range_for_size"):
        return None  # what an export adds beside an operation that is refused
    is_dynamic = torch.Tag.dynamic_output_shape in operation.tags and name != "index"
    if covered_by(operation) is not None and not is_dynamic:
        return None
    if name in _REFUSAL_OF_NAME:
        return _REFUSAL_OF_NAME[name]
    if is_dynamic:
        return _ANY_DYNAMIC
    return _LINEAR_ALGEBRA if name.startswith("linalg_") else _ANY_OTHER


def _refusal_of_node(node: Node) -> Refusal | None:
    if isinstance(node.target, HigherOrderOperator):
        return CONTROL_FLOW_REFUSAL if _is_control_flow(node) else _ANY_OTHER
    if not isinstance(node.target, OpOverload):
        return None
    refusal = refusal_of(node.target, [_value(argument) for argument in node.args])
    return refusal or (_ANY_DYNAMIC if _makes_symbols(node) else None)


def _is_control_flow(node: Node) -> bool:
    return isinstance(node.target, HigherOrderOperator) and node.target.__name__ in CONTROL_FLOW


def _makes_symbols(node: Node) -> bool:
    """Whether the result has a dimension of unknown size, and nothing it was made from has."""
    return _has_symbols(node.meta.get("val")) and not any(_has_symbols(_value(x)) for x in node.all_input_nodes)


def _has_symbols(value: object) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def _has_boolean_index(name: str, arguments: Sequence[Any]) -> bool:
    """A mask as index. Setting one value under a mask keeps the shape, and is covered."""
    indices = arguments[1] if len(arguments) > 1 else ()
    if not any(getattr(index, "dtype", None) in (torch.bool, torch.uint8) for index in indices or ()):
        return False
    return name == "index" or arguments[2].numel() != 1


def _value(argument: Any) -> Any:
    """The arguments of a node, with the traced values in the place of nodes."""
    return torch.fx.node.map_arg(argument, lambda node: node.meta.get("val"))
