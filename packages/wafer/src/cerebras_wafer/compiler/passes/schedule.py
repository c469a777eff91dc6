"""Schedule in weight streaming: one layer at a time, its weights broadcast in and its gradients reduced out.

A layer takes max(forward, weights in) + max(backward, weights in + gradients out) + a fixed time. Every
micro-batch pays all of it. This form, and its constants in a system's spec, were fitted to published rates.
"""

import math
from collections import defaultdict

from cerebras_contract.plans import Bound, KernelPlan, LayerPlan, MemoryEstimate, Mode, Phase, Plan, Trust
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import Kernel, KernelGraph
from cerebras_wafer.errors import CompileError
from cerebras_wafer.hardware.costs import compute_cycles, peak_multiply_adds_per_second, streaming_cycles

ACTIVATION_SHARE_OF_SRAM = 0.8  # the rest holds code, buffers in flight and the layer's weights
TRUST = (
    "Uncalibrated: constants are starting values from published GPT, BERT and Llama training rates; within that"
    " family such a fit is off by about 3.5 % in the mean and 13 % at worst, on convolutions it was never checked,"
    " and small models are predicted up to 3.5 times too fast."
)
_COMPUTE_PHASES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)


def schedule(graph: KernelGraph, options: CompileOptions, system: SystemSpec) -> Plan:
    """The plan of one training step: micro-batch, layers, cycles, memory."""
    per_system = _batch_per_system(graph.batch_size, options.num_csx)
    saved_per_system = graph.saved_bytes // options.num_csx
    micro_batch = _micro_batch(per_system, saved_per_system, system)
    share = micro_batch / graph.batch_size
    layer_of = _layers_of_kernels(graph)
    kernels = [_kernel_plan(kernel, layer_of[kernel.name], share, graph, options, system) for kernel in graph.kernels]
    layers = _layers(graph, kernels, options, system)
    micro_batches = per_system // micro_batch
    return Plan(
        system=system.name,
        clock_hz=system.clock_hz,
        fabric_columns=system.fabric_columns,
        fabric_rows=system.fabric_rows,
        mode=Mode.WEIGHT_STREAMING,
        mode_reason="it is the mode of models of any size",
        num_csx=options.num_csx,
        batch_size=graph.batch_size,
        micro_batch=micro_batch,
        micro_batches_per_step=micro_batches,
        kernels=kernels,
        layers=layers,
        regions=[],
        routes=[],
        candidates=[],
        warnings=[],
        fill=1.0,
        step_cycles=micro_batches * sum(layer.total_cycles for layer in layers),
        evaluation_cycles=micro_batches * sum(_evaluation_cycles(layer) for layer in layers),
        bound=max(layers, key=lambda layer: layer.total_cycles).bound,
        memory=_memory(graph, round(graph.saved_bytes * share), system),
        trust=Trust(calibrated=False, family="", calibration_set="", statement=TRUST),
    )


def _batch_per_system(batch_size: int, num_csx: int) -> int:
    if batch_size % num_csx:
        raise CompileError(
            f"the batch of {batch_size} samples cannot be divided evenly among {num_csx} systems",
            advice=f"Choose a batch size that is a multiple of {num_csx}, or another num_csx.",
        )
    return batch_size // num_csx


def _micro_batch(batch: int, saved_bytes: int, system: SystemSpec) -> int:
    """The largest divisor of the batch whose activations stay on the wafer; 1 spills the rest."""
    room = system.sram_bytes * ACTIVATION_SHARE_OF_SRAM
    divisors = [number for number in range(batch, 0, -1) if batch % number == 0]
    return next((number for number in divisors if saved_bytes * number / batch <= room), 1)


def _kernel_plan(
    kernel: Kernel, layer: str, share: float, graph: KernelGraph, options: CompileOptions, system: SystemSpec
) -> KernelPlan:
    """`share` is the part of the whole batch that one micro-batch is."""
    on_wafer = kernel.phase in _COMPUTE_PHASES
    multiply_adds = round(kernel.multiply_adds * share)
    work = [(name, round(count * share)) for name, count in kernel.element_work]
    cycles = compute_cycles(system, multiply_adds, work) if on_wafer else 0
    peak = peak_multiply_adds_per_second(system, options.precision.compute_dtype != "float32") / system.clock_hz
    return KernelPlan(
        name=kernel.name,
        kind=kernel.kind,
        phase=kernel.phase,
        module=kernel.module,
        layer=layer,
        source=kernel.source,
        operations=list(kernel.operations),
        multiply_adds=multiply_adds,
        elements=round(kernel.elements * share),
        weight_bytes=_weight_bytes(kernel.parameters, graph, options),
        output_bytes=round(kernel.output_bytes * (share if on_wafer else 1)),
        cycles=cycles,
        utilization=multiply_adds / (cycles * peak) if cycles else 0.0,
        processing_elements=system.processing_elements,
        sram_bytes_per_pe=0,
        fabric_bytes=0,
        off_wafer_bytes=0,
        bound=Bound.COMPUTE,
    )


def _weight_bytes(names: tuple[str, ...], graph: KernelGraph, options: CompileOptions) -> int:
    sizes = {weight.name: math.prod(weight.shape) for weight in graph.weights}
    return _weight_width(options) * sum(sizes[name] for name in names)


def _layers_of_kernels(graph: KernelGraph) -> dict[str, str]:
    """The layer of each kernel, by the kernel's name.

    Kernels without a layer of their own, those of modules without weights, join the one before in the order of
    forward; the loss joins the last.
    """
    weights = _weights_of_layers(graph)
    layer_of_module: dict[str, str] = {}
    layer = next(iter(weights), "model")
    for kernel in graph.of(Phase.FORWARD):
        own = _layer_of_module(kernel.module)
        layer = own if own in weights else layer
        layer_of_module.setdefault(kernel.module, layer)
    return {
        kernel.name: layer if kernel.phase == Phase.LOSS else layer_of_module.get(kernel.module, layer)
        for kernel in graph.kernels
    }


def _layer_of_module(module: str) -> str:
    """An element of a list of modules, such as a transformer block, is one layer with all that is in it, as in
    the fit of the constants; any other module is a layer by itself."""
    parts = module.split(".")
    for length, part in enumerate(parts, start=1):
        if part.isdigit():
            return ".".join(parts[:length])
    return module or "model"


def _weights_of_layers(graph: KernelGraph) -> dict[str, tuple[str, ...]]:
    """Names of the weights that each layer reads, layers in the order of forward."""
    found: dict[str, dict[str, None]] = {}
    for kernel in graph.of(Phase.FORWARD):
        if kernel.parameters:
            found.setdefault(_layer_of_module(kernel.module), {}).update(dict.fromkeys(kernel.parameters))
    return {layer: tuple(names) for layer, names in found.items()}


def _layers(
    graph: KernelGraph, kernels: list[KernelPlan], options: CompileOptions, system: SystemSpec
) -> list[LayerPlan]:
    cycles: dict[tuple[str, Phase], int] = defaultdict(int)
    for kernel in kernels:
        cycles[kernel.layer, kernel.phase] += kernel.cycles
    return [
        _layer(name, cycles, _weight_bytes(weights, graph, options), _gradient_bytes(weights, graph, system), system)
        for name, weights in _weights_of_layers(graph).items()
    ]


def _gradient_bytes(names: tuple[str, ...], graph: KernelGraph, system: SystemSpec) -> int:
    elements = sum(math.prod(weight.shape) for weight in graph.weights if weight.name in names)
    return round(elements * system.gradient_bytes_per_parameter)


def _weight_width(options: CompileOptions) -> int:
    """Bytes of a weight on its way to the wafer."""
    return 4 if options.precision.compute_dtype == "float32" else 2


def _layer(
    name: str,
    cycles: dict[tuple[str, Phase], int],
    weight_bytes: int,
    gradient_bytes: int,
    system: SystemSpec,
) -> LayerPlan:
    forward = cycles[name, Phase.FORWARD]
    backward = cycles[name, Phase.BACKWARD] + cycles[name, Phase.LOSS]
    weights_in, gradients_out = (
        streaming_cycles(system, weight_bytes),
        streaming_cycles(system, gradient_bytes),
    )
    overhead = round(system.layer_overhead_seconds * system.clock_hz)
    streaming = 2 * weights_in + gradients_out
    largest = max(overhead, forward + backward, streaming)
    return LayerPlan(
        name=name,
        planned_as=name,
        weight_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
        forward_cycles=forward,
        backward_cycles=backward,
        weights_in_cycles=weights_in,
        gradients_out_cycles=gradients_out,
        overhead_cycles=overhead,
        total_cycles=max(forward, weights_in) + max(backward, weights_in + gradients_out) + overhead,
        forward_sram_bytes_per_pe=0,
        backward_sram_bytes_per_pe=0,
        spilled_bytes=0,
        bound={overhead: Bound.OVERHEAD, forward + backward: Bound.COMPUTE, streaming: Bound.WEIGHT_IO}[largest],
    )


def _evaluation_cycles(layer: LayerPlan) -> int:
    """Only the forward pass, and a third of the fixed time."""
    return max(layer.forward_cycles, layer.weights_in_cycles) + layer.overhead_cycles // 3


def _memory(graph: KernelGraph, activations_bytes: int, system: SystemSpec) -> MemoryEstimate:
    return MemoryEstimate(
        weights_bytes=4 * sum(math.prod(weight.shape) for weight in graph.weights),
        optimizer_state_bytes=4 * sum(weight.state_elements for weight in graph.weights),
        gradients_bytes=4 * sum(math.prod(weight.shape) for weight in graph.weights if weight.trained),
        activations_bytes=activations_bytes,
        spilled_bytes=0,
        wafer_sram_bytes=system.sram_bytes,
        peak_sram_bytes_per_pe=0,
    )
