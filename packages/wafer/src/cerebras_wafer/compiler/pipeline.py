"""The list of passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from cerebras_contract.artifacts import Phase, Plan, ProgramName, Report, Versions
from cerebras_contract.systems import load_system
from cerebras_wafer import COMPILER_VERSION
from cerebras_wafer.compiler.frontends.training_step import CompileOptions, Program, TrainingStep
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.keys import artifact_key
from cerebras_wafer.compiler.passes.match import kernels_of_update, match
from cerebras_wafer.compiler.passes.partition import partition, saved_bytes
from cerebras_wafer.compiler.passes.precision import round_at_kernel_edges
from cerebras_wafer.compiler.passes.schedule import schedule
from cerebras_wafer.compiler.report.build import build_report

Log = Callable[[str], None]


@dataclass(frozen=True)
class Compiled:
    """What the passes leave: everything of an artifact but its files."""

    key: str
    step: TrainingStep
    options: CompileOptions
    versions: Versions
    programs: Mapping[ProgramName, Program]
    plan: Plan
    report: Report


def compiler_versions() -> Versions:
    """Versions that are ingredients of every key. A local build tag of torch does not change its programs."""
    return Versions(compiler=COMPILER_VERSION, torch=torch.__version__.split("+")[0])


def compile_step(step: TrainingStep, options: CompileOptions, log: Log) -> Compiled:
    """Run the passes over a captured step. Raises `CompileError` where the model cannot be mapped."""
    system = load_system(options.system)
    versions = compiler_versions()

    log(f"Pass precision: compute in {options.precision.compute_dtype}, weights and sums in float32")
    for program in (step.joint, step.evaluate):
        round_at_kernel_edges(program, options.precision)

    forward, backward = partition(step.joint)
    log(f"Pass partition: {len(forward.outputs)} results of forward, {len(backward.outputs)} gradients")
    programs = {
        ProgramName.FORWARD: forward,
        ProgramName.LOSS: step.loss,
        ProgramName.BACKWARD: backward,
        ProgramName.UPDATE: step.update,
        ProgramName.EVALUATE: step.evaluate,
    }

    graph = _kernel_graph(step, programs)
    log(f"Pass match: {_count_operations(programs)} operations covered by {len(graph.kernels)} kernels")

    plan = schedule(graph, step, options, system)
    log(f"Pass schedule: {len(plan.layers)} layers, micro-batch {plan.micro_batch} of {plan.batch_size}")

    key = artifact_key(programs, options, system, versions)
    report = build_report(key, plan, step, options, system)
    return Compiled(key, step, options, versions, programs, plan, report)


def _kernel_graph(step: TrainingStep, programs: Mapping[ProgramName, Program]) -> KernelGraph:
    kernels = [
        *match(Phase.FORWARD, programs[ProgramName.FORWARD]),
        *match(Phase.LOSS, programs[ProgramName.LOSS]),
        *match(Phase.BACKWARD, programs[ProgramName.BACKWARD]),
        *kernels_of_update(programs[ProgramName.UPDATE], step.optimizer.name),
    ]
    return KernelGraph(tuple(kernels), saved_bytes(programs[ProgramName.FORWARD]))


def _count_operations(programs: Mapping[ProgramName, Program]) -> int:
    graphs = [program.graph_module.graph for program in programs.values()]
    return sum(node.op == "call_function" for graph in graphs for node in graph.nodes)
