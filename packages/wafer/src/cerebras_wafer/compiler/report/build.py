"""Builds the report from a plan."""

import math
from collections import defaultdict

from cerebras_contract.plans import Bound, KernelPlan, LayerPlan, Phase, Plan, RegionPlan
from cerebras_contract.reports import KernelReport, LayerReport, Report
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.placement.inputs import input_bytes
from cerebras_wafer.hardware.costs import peak_multiply_adds_per_second, utilization


def build_report(key: str, plan: Plan, graph: KernelGraph, options: CompileOptions, system: SystemSpec) -> Report:
    """Rates are samples a second of device time; utilization is a fraction of the dense peak."""
    half = options.precision.compute_dtype.is_half
    peak = peak_multiply_adds_per_second(system, half)
    kernels_of: dict[str, list[KernelPlan]] = defaultdict(list)
    for kernel in plan.kernels:
        if kernel.phase != Phase.UPDATE:
            kernels_of[kernel.layer].append(kernel)
    return Report(
        artifact_key=key,
        system=plan.system,
        mode=plan.mode,
        mode_reason=plan.mode_reason,
        num_csx=plan.num_csx,
        batch_size=plan.batch_size,
        micro_batch=plan.micro_batch,
        step_seconds=plan.step_seconds,
        outside_layers_seconds=_outside_layers_seconds(plan),
        samples_per_second=plan.samples_per_second,
        compute_samples_per_second=_rate(plan, _compute_cycles(plan)),
        transmission_samples_per_second=_rate(plan, _transmission_cycles(plan, graph, system)),
        active_pes=round(plan.fill * system.processing_elements),
        total_pes=system.processing_elements,
        compute_utilization=utilization(plan, system, half),
        bound=plan.bound,
        parameters=sum(math.prod(weight.shape) for weight in graph.own_weights),
        memory=plan.memory,
        layers=[_layer(layer, kernels_of[layer.name], plan, peak) for layer in plan.layers]
        + [_region(region, kernels_of[region.name], plan) for region in plan.regions],
        kernels=[_kernel(kernel, plan) for kernel in plan.kernels if kernel.phase != Phase.UPDATE],
        candidates=plan.candidates,
        warnings=plan.warnings,
        trust=plan.trust,
    )


def _outside_layers_seconds(plan: Plan) -> float:
    if plan.regions:
        return 0.0
    cycles = plan.step_cycles - plan.micro_batches_per_step * sum(layer.total_cycles for layer in plan.layers)
    return cycles / plan.clock_hz


def _compute_cycles(plan: Plan) -> float:
    """Cycles of a micro-batch, if nothing was waited for."""
    if plan.regions:
        return max(region.cycles for region in plan.regions) * plan.micro_batch
    return sum(layer.forward_cycles + layer.backward_cycles for layer in plan.layers)


def _transmission_cycles(plan: Plan, graph: KernelGraph, system: SystemSpec) -> float:
    """Cycles of a micro-batch, if only the bytes to and from the wafer counted: weights and gradients, or samples."""
    if plan.regions:
        sample_bytes = input_bytes(graph, graph.value_bytes)
        return plan.micro_batch * sample_bytes / system.off_wafer_bytes_per_second * plan.clock_hz
    return sum(2 * layer.weights_in_cycles + layer.gradients_out_cycles for layer in plan.layers)


def _rate(plan: Plan, cycles_a_micro_batch: float) -> float:
    """Samples a second if nothing but these cycles passed."""
    seconds = max(cycles_a_micro_batch, 1) * plan.micro_batches_per_step / plan.clock_hz
    return plan.batch_size / seconds


def _layer(layer: LayerPlan, kernels: list[KernelPlan], plan: Plan, peak: float) -> LayerReport:
    seconds = layer.total_cycles * plan.micro_batches_per_step / plan.clock_hz
    multiply_adds = sum(kernel.multiply_adds for kernel in kernels) * plan.micro_batches_per_step
    return LayerReport(
        name=layer.name,
        planned_as=layer.planned_as,
        seconds=seconds,
        utilization=multiply_adds / max(seconds, 1 / plan.clock_hz) / peak,
        active_pes=plan.fabric_columns * plan.fabric_rows,
        sram_bytes_per_pe=max(layer.forward_sram_bytes_per_pe, layer.backward_sram_bytes_per_pe),
        weight_bytes=layer.weight_bytes,
        output_bytes=sum(kernel.output_bytes for kernel in kernels if kernel.phase == Phase.FORWARD),
        off_wafer_bytes=(2 * layer.weight_bytes + layer.gradient_bytes + 2 * layer.spilled_bytes)
        * plan.micro_batches_per_step,
        bound=layer.bound,
    )


def _region(region: RegionPlan, kernels: list[KernelPlan], plan: Plan) -> LayerReport:
    return LayerReport(
        name=region.name,
        planned_as=region.name,
        seconds=region.cycles * plan.batch_size / plan.clock_hz,
        utilization=region.utilization,
        active_pes=region.processing_elements,
        sram_bytes_per_pe=region.sram_bytes_per_pe,
        weight_bytes=sum(kernel.weight_bytes for kernel in kernels if kernel.phase == Phase.FORWARD),
        output_bytes=sum(kernel.output_bytes for kernel in kernels if kernel.phase == Phase.FORWARD),
        off_wafer_bytes=sum(kernel.off_wafer_bytes for kernel in kernels) * plan.micro_batches_per_step,
        bound=max(kernels, key=lambda kernel: kernel.cycles).bound if kernels else Bound.OVERHEAD,
    )


def _kernel(kernel: KernelPlan, plan: Plan) -> KernelReport:
    seconds = kernel.cycles * plan.micro_batches_per_step / plan.clock_hz
    return KernelReport(
        name=kernel.name,
        module=kernel.module,
        kind=kernel.kind,
        phase=kernel.phase,
        layer=kernel.layer,
        seconds=seconds,
        compute_samples_per_second=plan.batch_size / max(seconds, 1 / plan.clock_hz),
        utilization=kernel.utilization,
        active_pes=kernel.processing_elements,
        sram_bytes_per_pe=kernel.sram_bytes_per_pe,
        fabric_bytes=kernel.fabric_bytes * plan.micro_batches_per_step,
        off_wafer_bytes=kernel.off_wafer_bytes * plan.micro_batches_per_step,
        bound=kernel.bound,
    )
