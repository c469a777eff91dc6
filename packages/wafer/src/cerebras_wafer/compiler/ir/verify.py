"""The verifier of kernel graphs: run after each pass, so that a pass that errs is found where it erred."""

import math

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import EXTENTS, HEAVY_KINDS, Kernel, KernelGraph, KernelKind
from cerebras_wafer.errors import CompilerBug

_ORDER = {phase: number for number, phase in enumerate(Phase)}


def verify(graph: KernelGraph, after: str) -> None:
    """Raise `CompilerBug`, naming the pass and the kernel, where the graph contradicts itself."""
    weights = {weight.name for weight in graph.weights}
    seen: set[str] = set()
    phase = Phase.FORWARD
    for kernel in graph.kernels:
        for fault in _faults(kernel, seen, weights, phase):
            raise CompilerBug(f"after {after}: kernel {kernel.name}: {fault}")
        seen.add(kernel.name)
        phase = kernel.phase
    missing = [phase for phase in Phase if not graph.of(phase)]
    if missing:
        raise CompilerBug(f"after {after}: no kernel of phase {', '.join(missing)}")


def _faults(kernel: Kernel, seen: set[str], weights: set[str], phase: Phase) -> list[str]:
    unknown = [name for name in kernel.producers if name not in seen]
    unknown += [name for name in kernel.parameters if name not in weights]
    numbers = (
        kernel.multiply_adds,
        kernel.output_bytes,
        kernel.saved_bytes,
        *(count for _, count in kernel.element_work),
    )
    found = {
        "its name is taken": kernel.name in seen,
        f"it reads {', '.join(unknown)}, which is not there before it": bool(unknown),
        f"phase {kernel.phase} comes after phase {phase}": _ORDER[kernel.phase] < _ORDER[phase],
        "a negative amount of work": min(numbers) < 0,
        "multiply-adds in a kernel that multiplies nothing": kernel.multiply_adds > 0
        and kernel.kind not in HEAVY_KINDS,
        "forward keeps what is made later": kernel.saved_bytes > 0 and kernel.phase != Phase.FORWARD,
    }
    return [fault for fault, is_so in found.items() if is_so] + _faults_of_extents(kernel)


def _faults_of_extents(kernel: Kernel) -> list[str]:
    if not kernel.extents:
        return []
    names = tuple(name for name, _ in kernel.extents)
    if names != EXTENTS.get(kernel.kind):
        return [f"extents {names} are not those of a {kernel.kind}"]
    values = dict(kernel.extents)
    product = math.prod(values.values())
    if kernel.kind == KernelKind.CONV2D:
        product //= values["groups"] ** 2
    if kernel.kind == KernelKind.ATTENTION:
        product *= 2
    return [] if product == kernel.multiply_adds else [f"{kernel.multiply_adds} multiply-adds, extents say {product}"]
