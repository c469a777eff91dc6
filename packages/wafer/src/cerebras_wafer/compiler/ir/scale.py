"""The same step at another batch size, without capturing it again."""

from dataclasses import replace

from cerebras_wafer.compiler.ir.kernels import Kernel, KernelGraph, KernelKind


def scaled(graph: KernelGraph, batch_size: int) -> KernelGraph:
    """The kernel graph at `batch_size`: work and activations grow in proportion, weights stay.

    Shapes are those of the traced batch where the batch is not their first dimension.
    """
    if batch_size == graph.batch_size:
        return graph
    kernels = tuple(_scaled(kernel, graph.batch_size, batch_size) for kernel in graph.kernels)
    return replace(graph, batch_size=batch_size, kernels=kernels)


def _scaled(kernel: Kernel, old: int, new: int) -> Kernel:
    if not kernel.grows_with_batch:
        return kernel
    extents = _scaled_extents(kernel, old, new)
    return replace(
        kernel,
        shape=tuple(new if position == 0 and size == old else size for position, size in enumerate(kernel.shape)),
        extents=extents,
        multiply_adds=kernel.multiply_adds * new // old,
        element_work=tuple((work, count * new // old) for work, count in kernel.element_work),
        output_bytes=kernel.output_bytes * new // old,
        saved_bytes=kernel.saved_bytes * new // old,
    )


def _scaled_extents(kernel: Kernel, old: int, new: int) -> tuple[tuple[str, int], ...]:
    """A matrix product over samples has them in its rows, a batched one in its batch."""
    values = dict(kernel.extents)
    if not values:
        return ()
    grown = "rows" if kernel.kind == KernelKind.MATMUL and values["batch"] % old else "batch"
    return tuple((name, value * new // old if name == grown else value) for name, value in kernel.extents)
