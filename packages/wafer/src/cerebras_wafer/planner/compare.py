"""One captured step planned in many ways: each combination of system, number of systems and batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from cerebras_contract.planning import MODE_WORDS, PassName, PlanRow
from cerebras_contract.plans import CandidatePlan, Plan, PlanWarning, Trust
from cerebras_contract.systems import SystemSpec, load_system
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.ir.scale import scaled
from cerebras_wafer.compiler.passes.schedule import LAYER_EXCEEDS_WAFER
from cerebras_wafer.compiler.planning import plan_graph
from cerebras_wafer.errors import CompileError
from cerebras_wafer.hardware.costs import utilization
from cerebras_wafer.planner.options import PlanChoices

SECONDS_AN_HOUR = 3600


@dataclass(frozen=True)
class Combination:
    """A row, and what a person may want to know behind it. A row that does not fit has no more than its reason.

    `candidates` are there where they were to be explored.
    """

    row: PlanRow
    candidates: tuple[CandidatePlan, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    trust: Trust | None = None


def compare(
    graph: KernelGraph,
    options: CompileOptions,
    choices: PlanChoices,
    max_steps: int | None,
    show: Callable[[str], None],
) -> list[Combination]:
    """Plan every combination of `choices`; what they leave open is taken from `options` and `graph`.

    A combination that cannot be planned is a row that says why. `show` is given the plans, where they are asked for.
    Raises `ReportedError` for a system that cannot be read.
    """
    options = _chosen(options, choices)
    systems = [(name, load_system(name)) for name in choices.systems or (options.system,)]
    graphs = {batch: scaled(graph, batch) for batch in choices.batches or (graph.batch_size,)}
    combinations = product(systems, choices.num_csx or (options.num_csx,), graphs.values())
    found = []
    for (name, system), num_csx, scaled_graph in combinations:
        wanted = replace(options, system=name, num_csx=num_csx)
        try:
            plan = plan_graph(scaled_graph, wanted, system, _nowhere)
        except CompileError as error:
            found.append(_refused(error, wanted, system, scaled_graph.batch_size))
            continue
        if choices.print_after == PassName.PLAN:
            show(plan.model_dump_json(indent=2))
        too_large = [warning.message for warning in plan.warnings if warning.code == LAYER_EXCEEDS_WAFER]
        if too_large:
            found.append(_unfit(plan, too_large[0]))
            continue
        row = _row(plan, wanted, system, choices.max_steps or max_steps)
        candidates = tuple(plan.candidates) if wanted.micro_batch == "explore" else ()
        found.append(Combination(row, candidates, tuple(plan.warnings), plan.trust))
    return found


def _chosen(options: CompileOptions, choices: PlanChoices) -> CompileOptions:
    if choices.mode is not None:
        options = replace(options, execution_mode=MODE_WORDS[choices.mode])
    if choices.micro_batch is not None:
        options = replace(options, micro_batch=choices.micro_batch)
    return options


def _nowhere(_line: str) -> None:
    """The log of a single plan is no help among many."""


def _refused(error: CompileError, options: CompileOptions, system: SystemSpec, batch: int) -> Combination:
    report = error.report
    reason = ". ".join(part.rstrip(".") for part in (report.message, report.advice) if part)
    return Combination(
        PlanRow(
            system=system.name,
            num_csx=options.num_csx,
            batch=batch,
            mode=options.execution_mode,
            fits=False,
            reason=reason,
        )
    )


def _unfit(plan: Plan, reason: str) -> Combination:
    """A plan that a job would get with a warning, and that no system could run."""
    row = PlanRow(
        system=plan.system, num_csx=plan.num_csx, batch=plan.batch_size, mode=plan.mode, fits=False, reason=reason
    )
    return Combination(row)


def _row(plan: Plan, options: CompileOptions, system: SystemSpec, max_steps: int | None) -> PlanRow:
    hours = plan.step_seconds * max_steps / SECONDS_AN_HOUR if max_steps else None
    return PlanRow(
        system=plan.system,
        num_csx=plan.num_csx,
        batch=plan.batch_size,
        mode=plan.mode,
        fits=True,
        reason=plan.mode_reason,
        micro_batch=plan.micro_batch,
        samples_per_second=plan.samples_per_second,
        utilization=utilization(plan, system, options.precision.compute_dtype.is_half),
        bound=plan.bound,
        step_seconds=plan.step_seconds,
        system_hours=hours and hours * plan.num_csx,
        calibrated=plan.trust.calibrated,
        error_band=plan.trust.worst_error,
    )
