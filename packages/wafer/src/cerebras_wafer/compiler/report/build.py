"""Builds the report from a plan."""

import math

from cerebras_contract.artifacts import LayerPlan, LayerReport, Phase, Plan, Report
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions, TrainingStep
from cerebras_wafer.hardware.costs import peak_multiply_adds_per_second


def build_report(key: str, plan: Plan, step: TrainingStep, options: CompileOptions, system: SystemSpec) -> Report:
    """Rates are samples a second of device time; utilisation is a fraction of the dense peak."""
    half = options.precision.compute_dtype != "float32"
    peak = peak_multiply_adds_per_second(system, half) * plan.num_csx
    multiply_adds = sum(kernel.multiply_adds for kernel in plan.kernels) * plan.micro_batches_per_step * plan.num_csx
    return Report(
        artifact_key=key,
        system=plan.system,
        mode=plan.mode,
        batch_size=plan.batch_size,
        micro_batch=plan.micro_batch,
        samples_per_second=plan.batch_size / plan.step_seconds,
        compute_samples_per_second=_rate(plan, sum(x.forward_cycles + x.backward_cycles for x in plan.layers)),
        transmission_samples_per_second=_rate(
            plan, sum(2 * x.weights_in_cycles + x.gradients_out_cycles for x in plan.layers)
        ),
        active_pes=system.processing_elements,
        compute_utilization=multiply_adds / plan.step_seconds / peak,
        parameters=sum(math.prod(spec.shape) for spec in step.parameters),
        memory=plan.memory,
        layers=[_layer(layer, plan, system, half) for layer in plan.layers],
        trust=plan.trust,
    )


def _rate(plan: Plan, cycles_a_micro_batch: int) -> float:
    """Samples a second if nothing but these cycles passed."""
    seconds = max(cycles_a_micro_batch, 1) * plan.micro_batches_per_step / plan.clock_hz
    return plan.batch_size / seconds


def _layer(layer: LayerPlan, plan: Plan, system: SystemSpec, half: bool) -> LayerReport:
    kernels = [kernel for kernel in plan.kernels if kernel.layer == layer.name and kernel.phase != Phase.UPDATE]
    seconds = layer.total_cycles * plan.micro_batches_per_step / plan.clock_hz
    multiply_adds = sum(kernel.multiply_adds for kernel in kernels) * plan.micro_batches_per_step
    return LayerReport(
        name=layer.name,
        seconds=seconds,
        utilization=multiply_adds / seconds / peak_multiply_adds_per_second(system, half),
        weight_bytes=layer.weight_bytes,
        output_bytes=sum(kernel.output_bytes for kernel in kernels if kernel.phase == Phase.FORWARD),
        off_wafer_bytes=(2 * layer.weight_bytes + layer.gradient_bytes) * plan.micro_batches_per_step,
        bound=layer.bound,
    )
