"""The list of passes, from a captured step to a plan.

precision   round values where kernels meet
partition   cut the joint graph into forward and backward
refuse      say what no kernel covers
match       cover both with kernels of the library: the kernel graph
plan        choose the mode and the micro-batch; place or schedule; cost (see planning.py)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cerebras_contract.artifacts import ProgramName, Versions
from cerebras_contract.planning import PassName
from cerebras_contract.plans import Mode, Plan
from cerebras_contract.reports import Report
from cerebras_contract.systems import load_system
from cerebras_wafer.compiler.frontends.training_step import CompileOptions, Program, TrainingStep, WaferStep
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.ir.text import print_graph
from cerebras_wafer.compiler.ir.verify import verify
from cerebras_wafer.compiler.keys import artifact_key
from cerebras_wafer.compiler.passes.fuse import fuse_attention
from cerebras_wafer.compiler.passes.host_memory import host_memory_bytes
from cerebras_wafer.compiler.passes.match import match
from cerebras_wafer.compiler.passes.partition import partition
from cerebras_wafer.compiler.passes.precision import round_at_kernel_edges, scale_gradients
from cerebras_wafer.compiler.passes.refuse import refuse
from cerebras_wafer.compiler.passes.remake import remake_rounded_weights
from cerebras_wafer.compiler.planning import plan_graph
from cerebras_wafer.compiler.report.build import build_report
from cerebras_wafer.versions import compiler_versions

Log = Callable[[str], None]


@dataclass(frozen=True)
class Compiled:
    """What the passes leave: everything of an artifact but its files."""

    key: str
    step: TrainingStep
    options: CompileOptions
    versions: Versions
    programs: Mapping[ProgramName, Program]
    graph: KernelGraph
    plan: Plan
    report: Report


def compile_step(step: TrainingStep, options: CompileOptions, log: Log) -> Compiled:
    """Run the passes over a captured step. Raises `CompileError` where the model cannot be mapped."""
    system = load_system(options.system)
    versions = compiler_versions()
    round_at_kernel_edges(step.evaluate, options.precision)
    programs, graph = kernel_graph(step, options, log)
    programs[ProgramName.EVALUATE] = step.evaluate
    if options.precision.scales_loss:  # outside of the wafer's kernels, where gradients come and go in float32
        programs[ProgramName.BACKWARD] = scale_gradients(programs[ProgramName.BACKWARD])
    plan = plan_graph(graph, options, system, log)
    if plan.mode == Mode.WEIGHT_STREAMING:
        remake_rounded_weights(programs[ProgramName.FORWARD], programs[ProgramName.BACKWARD])
    plan = _with_host_memory(plan, host_memory_bytes(step, programs, plan, options.codegen))
    key = artifact_key(programs, step.updates, options, system, versions)
    return Compiled(
        key, step, options, versions, programs, graph, plan, build_report(key, plan, graph, options, system)
    )


def _with_host_memory(plan: Plan, peak_bytes: int) -> Plan:
    memory = plan.memory.model_copy(update={"host_peak_bytes": peak_bytes})
    return plan.model_copy(update={"memory": memory})


def plan_step(
    step: WaferStep, options: CompileOptions, log: Log, print_after: PassName | None = None
) -> tuple[KernelGraph, Plan]:
    """The plan of a captured step, without programs to run."""
    _, graph = kernel_graph(step, options, log, print_after)
    plan = plan_graph(graph, options, load_system(options.system), log)
    if print_after == PassName.PLAN:
        log(plan.model_dump_json(indent=2))
    return graph, plan


def kernel_graph(
    step: WaferStep, options: CompileOptions, log: Log, print_after: PassName | None = None
) -> tuple[dict[ProgramName, Program], KernelGraph]:
    """The programs that the wafer runs, and the kernels that cover them."""
    round_at_kernel_edges(step.joint, options.precision)
    log(f"Pass precision: compute in {options.precision}, weights and sums in float32")
    if print_after == PassName.PRECISION:
        log(_text(step.joint))

    forward, backward = partition(step.joint)
    programs = {ProgramName.FORWARD: forward, ProgramName.LOSS: step.loss, ProgramName.BACKWARD: backward}
    log(f"Pass partition: {len(forward.outputs)} results of forward, {len(backward.outputs)} gradients")
    if print_after == PassName.PARTITION:
        log("\n".join(_text(program) for program in programs.values()))

    refuse(programs)
    graph = match(step, programs, options.precision.compute_dtype)
    verify(graph, after=PassName.MATCH)
    operations = sum(len(kernel.operations) for kernel in graph.kernels)
    log(f"Pass match: {operations} operations covered by {len(graph.kernels)} kernels")
    if print_after == PassName.MATCH:
        log(print_graph(graph))

    graph = fuse_attention(graph)
    verify(graph, after=PassName.FUSE)
    if print_after == PassName.FUSE:
        log(print_graph(graph))
    return programs, graph


def _text(program: Program) -> str:
    return str(program.graph_module.graph)
