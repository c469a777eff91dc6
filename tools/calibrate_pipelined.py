"""Fit the constants of the pipelined mode to published compile reports: `python tools/calibrate_pipelined.py`.

Prints every point with the model's answer, and the errors on the points fitted and on those held out. With
`--write`, writes the constants to packages/wafer/src/cerebras_wafer/hardware/calibration/pipelined.yaml.

Two fits, one after the other. The PEs of kernels at the report's rate are linear in four constants: least squares
of relative errors, on kernels with odd numbers and the totals of two depths. Then the two constants of the memory
are searched for on the rates of three deep models. The loss's floor was read off the report of six and six layers.
Everything else is held out; the errors that the constants carry are those of held-out models that are not at that
floor, since models at it say nothing of the rest.
"""

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from tools.pipelined_workloads import Transformer

from cerebras_contract.systems import SystemSpec, load_system
from cerebras_wafer.compiler.placement.constants import PipelinedConstants, load_constants
from cerebras_wafer.compiler.placement.size import Sizer
from cerebras_wafer.compiler.placement.stages import stage_graph

FOLDER = Path(str(files("cerebras_wafer") / "hardware"))
DEEP_MODELS = ("encoder-decoder-24-24", "encoder-decoder-42-42", "encoder-decoder-72-72")
READ_OFF = "encoder-decoder-6-6"
FLOOR_SAMPLES_PER_SECOND = 5880  # of the sweep: its models at the floor have 5,887 to 5,897
FITTED_KERNELS = {
    ("gpt2-small", "fc", "odd"), ("gpt2-small", "attention", "even"), ("encoder-decoder-6-6", "fc", "odd"),
    ("encoder-decoder-6-6", "attention", "odd"), ("encoder-decoder-6-6", "head", "even"),
    ("encoder-decoder-6-6", "fc", "all"), ("encoder-decoder-6-6", "attention", "all"),
    ("encoder-decoder-24-24", "fc", "all"), ("encoder-decoder-24-24", "attention", "all"),
}  # fmt: skip
LINEAR = (
    "half_multiply_adds_per_cycle", "adapter_cycles_per_element", "attention_cycles_per_element",
    "serial_cycles_per_column",
)  # fmt: skip
MEMORY_BOUND_DEPTH = 30  # from here on PEs are given for memory, and say nothing of work
KINDS = {"fc": ("expand", "contract"), "attention": ("query", "key", "value", "core", "core.attention", "out")}


def report_system() -> SystemSpec:
    """The fabric of the reports: 307,840 PEs at the clock of a CS-2. Its sides are a guess, its area is not."""
    return load_system("cs-2").model_copy(update={"fabric_columns": 592, "fabric_rows": 520})


@dataclass(frozen=True)
class Point:
    """One published compile report as a whole."""

    workload: str
    shape: Transformer
    samples_per_second: float
    active_percent: float
    pes: dict[str, float]
    """PEs of all kernels of a kind, where published."""

    @property
    def fitted(self) -> bool:
        return self.workload in (READ_OFF, *DEEP_MODELS)

    @property
    def at_floor(self) -> bool:
        return self.samples_per_second > FLOOR_SAMPLES_PER_SECOND


@dataclass(frozen=True)
class KernelRow:
    """Mean PEs of the kernels of a kind in one report; `numbers` are odd, even or all of them."""

    workload: str
    kind: str
    numbers: str
    pes: float

    @property
    def fitted(self) -> bool:
        return (self.workload, self.kind, self.numbers) in FITTED_KERNELS


@dataclass(frozen=True)
class Prediction:
    """What the model says of a point."""

    samples_per_second: float
    active_percent: float


@cache
def points() -> tuple[Point, ...]:
    names = ("encoders", "decoders", "width", "heads", "head_width", "inner", "sequence", "vocabulary")
    return tuple(
        Point(
            row["workload"],
            Transformer(*(int(row[name]) for name in names)),
            float(row["samples_per_second"]),
            float(row["active_percent"]),
            {kind: float(row[f"{kind}_pes"]) for kind in KINDS if row[f"{kind}_pes"]},
        )
        for row in _rows("pipelined_points.csv")
    )


@cache
def kernel_rows() -> tuple[KernelRow, ...]:
    """Rows of the two reports by kind, and the published totals of a kind, a kernel each."""
    kinds = (*KINDS, "head", "tied_head", "loss")
    found = [
        KernelRow(row["workload"], row["kind"], row["numbers"], float(row["mean_pes"]))
        for row in _rows("pipelined_kernels.csv")
        if row["kind"] in kinds
    ]
    for point in points():
        layers = point.shape.encoders + point.shape.decoders
        kernels = {"fc": 2 * layers, "attention": layers + (point.shape.decoders if point.shape.encoders else 0)}
        if point.shape.encoders < MEMORY_BOUND_DEPTH:
            found += [KernelRow(point.workload, kind, "all", pes / kernels[kind]) for kind, pes in point.pes.items()]
    return tuple(found)


def predicted(point: Point, constants: PipelinedConstants) -> Prediction:
    """Rate and active PEs of a point, by the compiler's own sizing."""
    system = report_system()
    sizing = Sizer(stage_graph(point.shape.graph, system, constants), system, constants).best(
        constants.active_fraction * system.processing_elements
    )
    return Prediction(sizing.rate, 100 * sizing.total / system.processing_elements)


def predicted_pes(row: KernelRow, constants: PipelinedConstants) -> float:
    """PEs of one kernel of the row's kind at the rate that its report gives."""
    cycles, (work, serial) = _cycles_a_sample(row), _pe_cycles(row, constants)
    return work / (cycles - serial)


def rate_errors(constants: PipelinedConstants, some: Iterable[Point]) -> dict[str, float]:
    """Relative errors of the rates of points."""
    return {
        point.workload: predicted(point, constants).samples_per_second / point.samples_per_second - 1 for point in some
    }


def held_out() -> list[Point]:
    """The points by whose errors the model is judged."""
    return [point for point in points() if not point.fitted and not point.at_floor]


def kernel_errors(constants: PipelinedConstants, *, fitted: bool) -> dict[str, float]:
    """Relative errors of the PEs of kernels: of those fitted, or of those held out."""
    return {
        f"{row.workload} {row.kind} {row.numbers}": predicted_pes(row, constants) / row.pes - 1
        for row in kernel_rows()
        if row.fitted == fitted
    }


def active_errors(constants: PipelinedConstants) -> dict[str, float]:
    """Relative errors of the active PEs, where a model does not fill the fabric; published in whole per cents."""
    some = [point for point in points() if point.at_floor and point.active_percent > 10]
    return {point.workload: predicted(point, constants).active_percent / point.active_percent - 1 for point in some}


def fit(start: PipelinedConstants) -> PipelinedConstants:
    """Both fits, the linear one first: the memory's constants depend on it."""
    constants = fit_work(start)
    return _fit_memory(constants)


def fit_work(start: PipelinedConstants) -> PipelinedConstants:
    """Least squares of relative errors of PEs x cycles = work + PEs x serial cycles, which is linear in the constants
    (in 1 / multiply-adds a cycle)."""
    zero = start.model_copy(
        update={"fraction_of_peak": math.inf, LINEAR[0]: math.inf, **dict.fromkeys(LINEAR[1:], 0.0)}
    )
    units = [zero.model_copy(update={name: 1.0}) for name in LINEAR]
    equations, wanted = [], []
    for row in (row for row in kernel_rows() if row.fitted):
        observed, fixed = row.pes * _cycles_a_sample(row), _pe_cycles(row, zero)[0]
        both = [_pe_cycles(row, unit) for unit in units]
        equations.append([(work - fixed + serial * row.pes) / observed for work, serial in both])
        wanted.append((observed - fixed) / observed)
    solution, *_ = np.linalg.lstsq(np.array(equations), np.array(wanted), rcond=None)
    rate = round(float(1 / solution[0]), 3)
    peak = report_system().half_multiply_adds_per_cycle
    others = {name: round(float(value), 2) for name, value in zip(LINEAR[1:], solution[1:], strict=True)}
    return start.model_copy(update={LINEAR[0]: rate, "fraction_of_peak": round(rate / peak, 3), **others})


def _fit_memory(start: PipelinedConstants) -> PipelinedConstants:
    """A pattern search for the stash and the residents' factor, by squared logarithms of the fitted rates."""

    deep = [point for point in points() if point.workload in DEEP_MODELS]

    def loss(stash: float, factor: float) -> float:
        tried = start.model_copy(update={"stash_samples_per_stage": stash, "resident_factor": factor})
        return sum(math.log1p(error) ** 2 for error in rate_errors(tried, deep).values())

    best, step = (0.12, 2.5), (0.03, 0.5)
    losses: dict[tuple[float, float], float] = defaultdict(float, {best: loss(*best)})
    while step[0] > 0.003:
        around = [
            (round(best[0] + a * step[0], 4), round(best[1] + b * step[1], 3))
            for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1))
        ]
        losses |= {tried: loss(*tried) for tried in around if tried not in losses}
        found = min(losses, key=lambda tried: losses[tried])
        step = step if found != best else (step[0] / 2, step[1] / 2)
        best = found
    return start.model_copy(update={"stash_samples_per_stage": best[0], "resident_factor": best[1]})


def _pe_cycles(row: KernelRow, constants: PipelinedConstants) -> tuple[float, float]:
    """PE-cycles and serial cycles a sample of one kernel of a kind: stages summed as the report sums them."""
    shape = _point(row).shape
    layers = replace(shape, encoders=min(1, shape.encoders), decoders=1)
    stages = stage_graph(layers.graph, report_system(), constants).stages
    names = KINDS.get(row.kind, (row.kind.removeprefix("tied_"),))
    found = [stage for stage in stages if any(stage.name.endswith(name) for name in names)]
    kernels = {"fc": 2 * (layers.encoders + 1), "attention": 2 * layers.encoders + 1}.get(row.kind, 1)
    work, serial = (sum(getattr(stage, name) for stage in found) for name in ("pe_cycles", "serial_cycles"))
    alone = row.kind != "attention"  # the parts of an attention kernel have PEs of their own, and little serial work
    return work / kernels, serial / kernels if alone else 0.0


def _point(row: KernelRow) -> Point:
    return next(point for point in points() if point.workload == row.workload)


def _cycles_a_sample(row: KernelRow) -> float:
    return report_system().clock_hz / _point(row).samples_per_second


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / "points" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def summary(errors: dict[str, float]) -> tuple[float, float]:
    """Mean and worst of the absolute errors."""
    sizes = [abs(error) for error in errors.values()]
    return sum(sizes) / len(sizes), max(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the constants of the pipelined mode.")
    parser.add_argument("--write", action="store_true", help="write pipelined.yaml")
    parser.add_argument("--check", action="store_true", help="only show the committed constants' errors")
    options = parser.parse_args()
    constants = load_constants() if options.check else fit(load_constants())
    groups = {
        "samples/s, fitted": [point for point in points() if point.fitted],
        "samples/s, held out, at the loss's floor": [p for p in points() if p.at_floor and not p.fitted],
        "samples/s, held out": held_out(),
    }
    tables = {title: rate_errors(constants, some) for title, some in groups.items()}
    tables["PEs of kernels, fitted"] = kernel_errors(constants, fitted=True)
    tables["PEs of kernels, held out"] = kernel_errors(constants, fitted=False)
    tables["active PEs, models at the floor"] = active_errors(constants)
    for title, errors in tables.items():
        mean, worst = summary(errors)
        print(f"{title}: mean {mean:.1%}, worst {worst:.1%}")
        print("\n".join(f"  {error:+7.1%}  {name}" for name, error in errors.items()))
    mean, worst = summary(tables["samples/s, held out"])
    constants = constants.model_copy(update={"mean_error": round(mean, 3), "worst_error": round(worst, 3)})
    for name, value in constants:
        print(f"{name}: {value}")
    if options.write:
        _write(constants)


def _write(constants: PipelinedConstants) -> None:
    """Replace the numbers in the YAML file; its comments stay."""
    path = FOLDER / "calibration" / "pipelined.yaml"
    values = {name: str(value) for name, value in constants if not isinstance(value, str)}
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name = line.split(":")[0]
        comment = f"  # {line.split('# ', 1)[1]}" if "# " in line else ""
        lines.append(f"{name}: {values[name]}{comment}" if name in values else line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
