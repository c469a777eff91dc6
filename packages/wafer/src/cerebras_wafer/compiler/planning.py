"""Plan: choose how the model lies on the wafer, and what each kernel costs there."""

from collections.abc import Callable

from cerebras_contract.plans import Mode, Plan
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.passes.advise import advise
from cerebras_wafer.compiler.passes.schedule import schedule
from cerebras_wafer.compiler.placement.place import place
from cerebras_wafer.errors import CompileError

ASKED_FOR = "it was asked for"


def plan_graph(graph: KernelGraph, options: CompileOptions, system: SystemSpec, log: Callable[[str], None]) -> Plan:
    """The plan of a kernel graph on a system. Raises `CompileError` where it does not fit."""
    plan = _planned(graph, options, system)
    parts = f"{len(plan.regions)} regions" if plan.regions else f"{len(plan.layers)} layers"
    log(f"Pass plan: {plan.mode.words}, {parts}, micro-batch {plan.micro_batch} of {plan.batch_size}")
    return plan.model_copy(update={"warnings": [*plan.warnings, *advise(graph, options, system, plan.mode)]})


def _planned(graph: KernelGraph, options: CompileOptions, system: SystemSpec) -> Plan:
    match options.execution_mode:
        case Mode.WEIGHT_STREAMING:
            return _because(schedule(graph, options, system), ASKED_FOR)
        case Mode.PIPELINED:
            return place(graph, options, system, ASKED_FOR)
    return _picked(graph, options, system)


def _picked(graph: KernelGraph, options: CompileOptions, system: SystemSpec) -> Plan:
    """The faster of both modes by its estimate; weight streaming where only it can do what was asked for."""
    streamed = schedule(graph, options, system)
    if options.num_csx > 1:
        return _because(streamed, f"it runs on {options.num_csx} systems, pipelined on one")
    if options.micro_batch != "auto":
        return _because(streamed, "micro-batches are of this mode")
    try:
        placed = place(graph, options, system)
    except CompileError as error:
        return _because(streamed, f"pipelined is not possible: {error.report.message}")
    fast, slow = sorted((placed, streamed), key=lambda plan: plan.step_cycles)
    ratio = slow.step_cycles / fast.step_cycles
    return _because(fast, f"the estimate is {ratio:.1f} times that of {slow.mode.words}")


def _because(plan: Plan, reason: str) -> Plan:
    return plan.model_copy(update={"mode_reason": reason})
