"""The data that the page's script draws: what of plan and report it needs, no more."""

import math
from collections import Counter
from typing import Any

from cerebras_contract.plans import KernelPlan, Phase, Plan, RegionPlan
from cerebras_contract.reports import Report
from cerebras_wafer.compiler.report.repeats import shown
from cerebras_wafer.compiler.report.timeline import micro_batch_spans, sample_visits

DIGITS = 5  # significant digits of a fraction or of seconds: more than any of them is known to


def page_data(plan: Plan, report: Report) -> dict[str, Any]:
    """Plain values for JSON. Cycles and bytes as in the plan; repeated layers' kernels once."""
    return {
        "mode": plan.mode,
        "columns": plan.fabric_columns,
        "rows": plan.fabric_rows,
        "clock_hz": plan.clock_hz,
        "sram_bytes_per_pe": report.memory.wafer_sram_bytes // report.total_pes,
        "micro_batch": plan.micro_batch,
        "micro_batches": plan.micro_batches_per_step,
        "step_cycles": plan.step_cycles,
        "layers": _layers(plan, report),
        "regions": _regions(plan),
        "routes": _routes(plan),
        "kernels": _kernels(plan, report),
        "spans": [
            [span.lane, span.layer, span.phase, span.start_cycles, span.end_cycles] for span in micro_batch_spans(plan)
        ],
        "visits": [
            [visit.region, visit.phase, round(visit.start_cycles), round(visit.end_cycles)]
            for visit in sample_visits(plan)
        ],
    }


def _layers(plan: Plan, report: Report) -> list[dict[str, Any]]:
    """Layers of a weight-streaming plan, in the order of forward."""
    return [
        {
            "name": layer.name,
            "planned_as": layer.planned_as,
            "forward_cycles": layer.forward_cycles,
            "backward_cycles": layer.backward_cycles,
            "weights_in_cycles": layer.weights_in_cycles,
            "gradients_out_cycles": layer.gradients_out_cycles,
            "overhead_cycles": layer.overhead_cycles,
            "total_cycles": layer.total_cycles,
            "weight_bytes": layer.weight_bytes,
            "gradient_bytes": layer.gradient_bytes,
            "spilled_bytes": layer.spilled_bytes,
            "forward_sram": layer.forward_sram_bytes_per_pe,
            "backward_sram": layer.backward_sram_bytes_per_pe,
            "bound": layer.bound,
            "seconds": _short(row.seconds),
            "utilization": _short(row.utilization),
        }
        for layer, row in zip(plan.layers, report.layers, strict=False)
    ]


def _regions(plan: Plan) -> list[dict[str, Any]]:
    kinds = _kinds_of_regions(plan)
    return [
        {
            "name": region.name,
            "x": region.column,
            "y": region.row,
            "width": region.width,
            "height": region.height,
            "kernels": len(region.kernels),
            "kind": kinds.get(region.name, "layout"),
            "cycles": region.cycles,
            "sram": region.sram_bytes_per_pe,
            "utilization": _short(region.utilization),
            "rate": _short(region.samples_per_second),
            "seconds": _short(_region_seconds(region, plan)),
        }
        for region in plan.regions
    ]


def _region_seconds(region: RegionPlan, plan: Plan) -> float:
    return region.cycles * plan.batch_size / plan.clock_hz


def _kinds_of_regions(plan: Plan) -> dict[str, str]:
    """The kind of kernel that most of a region's cycles go to."""
    cycles: dict[str, Counter[str]] = {}
    for kernel in plan.kernels:
        if kernel.phase != Phase.UPDATE:
            cycles.setdefault(kernel.layer, Counter())[kernel.kind] += kernel.cycles
    return {layer: kinds.most_common(1)[0][0] for layer, kinds in cycles.items()}


def _routes(plan: Plan) -> list[list[int]]:
    """From region, to region (places in the list), hops, colour, bytes a sample."""
    places = {region.name: index for index, region in enumerate(plan.regions)}
    return [
        [places[route.source], places[route.target], route.hops, route.colour, route.bytes_per_sample]
        for route in plan.routes
        if route.source in places and route.target in places
    ]


def _kernels(plan: Plan, report: Report) -> dict[str, Any]:
    """Rows in the order in which they run, and the names of their columns: thousands of rows repeat no names."""
    planned: dict[str, KernelPlan] = {kernel.name: kernel for kernel in plan.kernels}
    rows = [
        {
            "name": kernel.name,
            "module": kernel.module,
            "kind": kernel.kind,
            "phase": kernel.phase,
            "layer": kernel.layer,
            "source": planned[kernel.name].source or "",
            "count": count,
            "seconds": _short(kernel.seconds),
            "utilization": _short(kernel.utilization),
            "pes": kernel.active_pes,
            "sram": kernel.sram_bytes_per_pe,
            "fabric_bytes": kernel.fabric_bytes,
            "off_wafer_bytes": kernel.off_wafer_bytes,
            "bound": kernel.bound,
        }
        for kernel, count in shown(report).kernels
    ]
    return {"names": list(rows[0]) if rows else [], "rows": [list(row.values()) for row in rows]}


def _short(number: float) -> float | None:
    """Few digits; JSON knows no infinities."""
    return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None
