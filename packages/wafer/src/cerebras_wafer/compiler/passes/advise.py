"""Advise: what compiles but wastes the wafer, with its place and what it costs. Nothing here changes the plan."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from cerebras_contract.plans import Mode, Phase, PlanWarning
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import HEAVY_KINDS, Kernel, KernelGraph, KernelKind

ALIGNMENT = 8
"""Dimensions are padded to a multiple of this: a PE reads two 64-bit words a cycle, eight values of two bytes."""
WORTH_SAYING = 0.01  # of the rate: 50,257 outputs, padded to 50,264, are no loss to speak of
ENOUGH_FILL = 0.5
LARGEST_GROWTH = 1e9

# Dimensions of a kernel that come from the model's own sizes, and how they are called.
_DIMENSIONS: dict[KernelKind, tuple[tuple[str, str], ...]] = {
    KernelKind.MATMUL: (("inner", "input"), ("columns", "output")),
    KernelKind.CONV2D: (("channels_in", "input channel"), ("channels_out", "output channel")),
    KernelKind.ATTENTION: (("width", "element of a head"),),
}
_PLURALS = {"element of a head": "elements of a head"}


class _Unaligned(NamedTuple):
    """A dimension of a kernel that is no multiple of `ALIGNMENT`."""

    called: str
    size: int
    source: str | None


def advise(graph: KernelGraph, options: CompileOptions, system: SystemSpec, mode: Mode) -> list[PlanWarning]:
    """Warnings about dimensions, precision and batch; equal ones of repeated layers are one.

    Pipelined, samples go through one by one, and the batch is no matter of how full the wafer is.
    """
    heavy = [kernel for kernel in graph.of(Phase.FORWARD) if kernel.kind in HEAVY_KINDS]
    if not heavy:
        return []
    found = [*_alignment(heavy), *_precision(heavy, options, system)]
    if mode == Mode.WEIGHT_STREAMING:
        found += _batch(heavy, graph.batch_size, options, system)
    return found


def _alignment(kernels: list[Kernel]) -> Iterator[PlanWarning]:
    modules: dict[_Unaligned, dict[str, Kernel]] = {}
    for kernel in kernels:
        for unaligned in _unaligned(kernel):
            modules.setdefault(unaligned, {}).setdefault(kernel.module, kernel)
    for (called, size, _), repeated in modules.items():
        padded = math.ceil(size / ALIGNMENT) * ALIGNMENT
        if 1 - size / padded < WORTH_SAYING:
            continue
        plural = _PLURALS.get(called, f"{called}s")
        others = f"; so are those of {len(repeated) - 1} more modules like it" if len(repeated) > 1 else ""
        yield _warning(
            "dimension_not_aligned",
            f"{size} {called if size == 1 else plural}, padded to {padded}: multiples of {ALIGNMENT} or"
            f" {2 * ALIGNMENT} waste nothing{others}",
            next(iter(repeated.values())),
            1 - size / padded,
        )


def _unaligned(kernel: Kernel) -> Iterator[_Unaligned]:
    if kernel.kind != KernelKind.ATTENTION and not kernel.parameters:
        return  # a product of two activations: its sizes are those of what made them
    extents = dict(kernel.extents)
    for extent, called in _DIMENSIONS[kernel.kind]:
        if extents[extent] % ALIGNMENT:
            yield _Unaligned(called, extents[extent], kernel.source)


def _precision(kernels: list[Kernel], options: CompileOptions, system: SystemSpec) -> Iterator[PlanWarning]:
    if options.precision.compute_dtype.is_half:
        return
    yield _warning(
        "float32_multiply_adds",
        f"{len(kernels)} matrix products and convolutions of forward are computed in float32, the largest of them here:"
        f" {system.name} does {system.half_multiply_adds_per_cycle:g} multiply-adds a cycle in half precision and"
        f" {system.single_multiply_adds_per_cycle:g} in this; pass mixed_precision to compile",
        max(kernels, key=lambda kernel: kernel.multiply_adds),
        1 - system.single_multiply_adds_per_cycle / system.half_multiply_adds_per_cycle,
    )


def _batch(
    kernels: list[Kernel], batch_size: int, options: CompileOptions, system: SystemSpec
) -> Iterator[PlanWarning]:
    """A PE without a value of the result has nothing to do: the fill of each kernel, weighted by its work."""
    fill = _fill(kernels, 1.0, options, system)
    if fill >= ENOUGH_FILL:
        return
    times = 1.0
    while _fill(kernels, times, options, system) < ENOUGH_FILL and times < LARGEST_GROWTH:
        times *= 1.1
    systems = f" on {options.num_csx} systems" if options.num_csx > 1 else ""
    yield _warning(
        "batch_too_small",
        f"a batch of {batch_size}{systems} gives {fill:.1%} of the {system.processing_elements:,} PEs a value to"
        f" compute; about {math.ceil(batch_size * times):,} samples would give one to half of them",
        max(kernels, key=lambda kernel: kernel.multiply_adds),
        1 - fill,
    )


def _fill(kernels: list[Kernel], times: float, options: CompileOptions, system: SystemSpec) -> float:
    """The share of the PEs that has work, at a batch that is `times` as large."""
    work = sum(kernel.multiply_adds for kernel in kernels)
    values = [times * math.prod(kernel.shape) / options.num_csx for kernel in kernels]
    fills = [min(1.0, count / system.processing_elements) for count in values]
    return sum(k.multiply_adds * share for k, share in zip(kernels, fills, strict=True)) / max(work, 1)


def _warning(code: str, message: str, kernel: Kernel, estimated_loss: float) -> PlanWarning:
    file, _, line = (kernel.source or "").rpartition(":")
    return PlanWarning(
        code=code,
        message=message,
        module=kernel.module,
        file=file or None,
        line=int(line) if file else None,
        estimated_loss=estimated_loss,
    )
