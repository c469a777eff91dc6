"""Trust: whether an estimate is inside of what the cost model was calibrated with, and how far off it is there."""

import math

from cerebras_contract.plans import Phase, Trust
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import Kernel, KernelGraph, KernelKind
from cerebras_wafer.hardware.calibration import CALIBRATED_SYSTEMS, Calibration, calibrated_system, calibration
from cerebras_wafer.hardware.costs import element_cycles

TRANSFORMER, CONVOLUTIONAL, PERCEPTRON, OTHER = "transformer", "convolutional network", "perceptron", "other"
ATTENTION_SHARE = 0.01  # of a transformer's work: 1.5 % at a sequence of 128, 20 % at 2,048
CONVOLUTION_SHARE = 0.05  # above it a model is no transformer; the patches of a vision transformer stay below
BEYOND = 2.0  # an estimate may be this factor outside of what was measured and still count as calibrated


def family_of(graph: KernelGraph) -> str:
    """The kind of model, from the work in its kernels: a multiply-add is weighed as a PE-cycle."""
    forward = graph.of(Phase.FORWARD)
    work: dict[KernelKind, float] = {}
    for kernel in forward:
        cost = kernel.multiply_adds + element_cycles(kernel.element_work)
        kind = KernelKind.ATTENTION if _is_attention(kernel) else kernel.kind
        work[kind] = work.get(kind, 0.0) + cost
    total = sum(work.values()) or 1.0
    if work.get(KernelKind.CONV2D, 0.0) / total > CONVOLUTION_SHARE:
        return CONVOLUTIONAL
    if work.get(KernelKind.ATTENTION, 0.0) / total >= ATTENTION_SHARE:
        return TRANSFORMER
    kinds = {kernel.kind for kernel in forward} - {KernelKind.LAYOUT, KernelKind.REDUCTION}
    return PERCEPTRON if kinds <= {KernelKind.MATMUL, KernelKind.ELEMENTWISE, KernelKind.NORM} else OTHER


def _is_attention(kernel: Kernel) -> bool:
    """Products of activations with activations are attention, also where it is written out in a way of its own."""
    return kernel.kind == KernelKind.ATTENTION or (kernel.kind == KernelKind.MATMUL and not kernel.parameters)


def trust_of(graph: KernelGraph, options: CompileOptions, system: SystemSpec) -> Trust:
    """How far a weight-streaming estimate is to be trusted."""
    family = family_of(graph)
    base = calibration(calibrated_system(system))
    faults = _faults(graph, family, options, system, base)
    if faults:
        return Trust(
            calibrated=False,
            family=family,
            calibration_set=base.points,
            statement=f"Not calibrated: {'; '.join(faults)}. The constants are those fitted to {base.points}.",
        )
    return Trust(
        calibrated=True,
        family=family,
        calibration_set=base.points,
        mean_error=base.held_out.mean,
        worst_error=max(base.held_out.worst, base.fit.worst, base.left_out.worst),
        statement=(
            f"Calibrated on {base.points}: of the rates held out while fitting the mean error is"
            f" {base.held_out.mean:.1%}, the worst {base.held_out.worst:.1%} (fitted ones: {base.fit.worst:.1%});"
            f" a model left out wholly was off by {base.left_out.mean:.0%}, at worst {base.left_out.worst:.0%}, which"
            f" is the error stated.{_stretched(graph, options, base)}"
        ),
    )


def _faults(
    graph: KernelGraph, family: str, options: CompileOptions, system: SystemSpec, base: Calibration
) -> list[str]:
    """What takes the estimate out of the calibration."""
    faults = []
    if family == PERCEPTRON:
        faults.append("of plain perceptrons a single rate was published (fc_mnist)")
    elif family != TRANSFORMER:
        faults.append(f"no rate of this kind of model ({family}) was published, only of transformers")
    if system.name not in CALIBRATED_SYSTEMS:
        faults.append(f"no rate of {system.name} was published; its constants are scaled from {base.system}")
    if not options.precision.compute_dtype.is_half:
        faults.append("every published rate is of 16-bit values, this is float32")
    if family == TRANSFORMER:
        faults += _outside(graph, options, base)
    return faults


def _outside(graph: KernelGraph, options: CompileOptions, base: Calibration) -> list[str]:
    """Quantities that are too far from what was measured."""
    return [text for text, factor in _distances(graph, options, base) if factor > BEYOND]


def _stretched(graph: KernelGraph, options: CompileOptions, base: Calibration) -> str:
    """A sentence on quantities that are outside of what was measured, and near enough."""
    near = [text for text, factor in _distances(graph, options, base) if 1 < factor <= BEYOND]
    return f" Beyond what was measured, by a factor below {BEYOND:g}: {'; '.join(near)}." if near else ""


def _distances(graph: KernelGraph, options: CompileOptions, base: Calibration) -> list[tuple[str, float]]:
    """Each quantity in words, and by what factor it is outside of the measured range."""
    parameters = sum(math.prod(weight.shape) for weight in graph.own_weights)
    sequences = [extent for kernel in graph.of(Phase.FORWARD) for name, extent in kernel.extents if name == "query"]
    measured = base.measured
    quantities = (
        ("parameters", parameters, measured.parameters),
        ("tokens a sample", max(sequences, default=0), measured.sequence),
        ("samples a system", graph.batch_size // options.num_csx, measured.batch),
    )
    return [
        (
            f"{_readable(value)} {name}, measured were {_readable(low)} to {_readable(high)}",
            max(low / max(value, 1), value / high),
        )
        for name, value, (low, high) in quantities
    ]


def _readable(count: float) -> str:
    """Millions and billions with a suffix, smaller counts in full."""
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count:,.0f}"
