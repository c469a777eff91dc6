"""Plan: choose how the model lies on the wafer, and what each kernel costs there."""

from collections.abc import Callable

from cerebras_contract.plans import Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.passes.schedule import schedule


def plan_graph(graph: KernelGraph, options: CompileOptions, system: SystemSpec, log: Callable[[str], None]) -> Plan:
    """The plan of a kernel graph on a system. Raises `CompileError` where it does not fit."""
    plan = schedule(graph, options, system)
    log(f"Pass schedule: {len(plan.layers)} layers, micro-batch {plan.micro_batch} of {plan.batch_size}")
    return plan
