"""Fuse: attention written out by hand becomes the attention core of the library.

Two matrix products without weights, with a softmax between them and nothing but elementwise work and changes of
layout around it, in one module: forward is softmax(q k) v, backward the products of their gradients.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import EXTENTS, KERNEL, Kernel, KernelGraph, KernelKind
from cerebras_wafer.hardware.work import WorkClass

_BETWEEN = frozenset({KernelKind.ELEMENTWISE, KernelKind.SOFTMAX, KernelKind.LAYOUT, KernelKind.REDUCTION})


def fuse_attention(graph: KernelGraph) -> KernelGraph:
    """The graph with each such run of kernels as one; others stay as they are."""
    kernels: list[Kernel] = []
    renamed: dict[str, str] = {}
    for _, run in groupby(graph.kernels, key=lambda kernel: (kernel.phase, kernel.module)):
        for part in _parts(list(run)):
            fused = _attention(part) if len(part) > 1 else part[0]
            renamed |= {KERNEL + kernel.name: KERNEL + fused.name for kernel in part}
            kernels.append(fused)
    return replace(graph, kernels=tuple(_reading(kernel, renamed) for kernel in kernels))


def _parts(run: list[Kernel]) -> list[list[Kernel]]:
    """The run in parts: each one kernel, or the kernels of one attention."""
    parts: list[list[Kernel]] = []
    position = 0
    while position < len(run):
        end = _end_of_attention(run, position)
        parts.append(run[position:end])
        position = end
    return parts


def _end_of_attention(run: Sequence[Kernel], start: int) -> int:
    """Where the attention ends that begins at `start`; one further where none begins."""
    softmax_seen = False
    if not _is_product(run[start]):
        return start + 1
    for position in range(start + 1, len(run)):
        if softmax_seen and _is_product(run[position]):
            return position + 1 if _is_whole(run[start : position + 1]) else start + 1
        if run[position].kind not in _BETWEEN or run[position].parameters:
            break
        softmax_seen |= run[position].kind == KernelKind.SOFTMAX
    return start + 1


def _is_product(kernel: Kernel) -> bool:
    return kernel.kind == KernelKind.MATMUL and not kernel.parameters


def _is_whole(part: Sequence[Kernel]) -> bool:
    """In forward both products are of the same scores: the second takes what the first gives."""
    if part[0].phase != Phase.FORWARD:
        return True
    first, second = dict(part[0].extents), dict(part[-1].extents)
    same = first["batch"] == second["batch"] and first["rows"] == second["rows"]
    return same and first["columns"] == second["inner"] and first["inner"] == second["columns"]


def _attention(part: list[Kernel]) -> Kernel:
    first, last = part[0], part[-1]
    softmax = next(kernel for kernel in part if kernel.kind == KernelKind.SOFTMAX)
    inside = {KERNEL + kernel.name for kernel in part}
    return replace(
        last,
        name=f"{first.phase}.{first.module or 'model'}.{KernelKind.ATTENTION}.{first.name.rpartition('.')[2]}",
        kind=KernelKind.ATTENTION,
        source=first.source,
        operations=tuple(name for kernel in part for name in kernel.operations),
        reads=tuple(dict.fromkeys(read for kernel in part for read in kernel.reads if read not in inside)),
        extents=_extents(dict(first.extents)) if first.extents else (),
        multiply_adds=sum(kernel.multiply_adds for kernel in part),
        element_work=((WorkClass.SCORE, dict(softmax.element_work)[WorkClass.SOFTMAX]),),
        saved_bytes=sum(kernel.saved_bytes for kernel in part),
    )


def _extents(product: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Heads are not told from samples in a product of matrices: all are counted as the batch."""
    values = (product["batch"], 1, product["rows"], product["columns"], product["inner"])
    return tuple(zip(EXTENTS[KernelKind.ATTENTION], values, strict=True))


def _reading(kernel: Kernel, renamed: dict[str, str]) -> Kernel:
    return replace(kernel, reads=tuple(dict.fromkeys(renamed.get(read, read) for read in kernel.reads)))
