"""Fitted constants of the cost model, the published points they were fitted to, and how far off they are.

`points/weight_streaming.csv` has the published rates with their sources; `calibration/workloads.json` the work of
the models that ran; `calibration/cs-2.yaml` and the like the constants of a system and their errors. All but the
points are written by tools/calibrate.py.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from statistics import fmean
from typing import Any

from cerebras_contract.systems import SystemSpec, load_system
from cerebras_contract.yaml_reader import load_yaml
from cerebras_wafer.hardware.costs import Constants, Machine, best_micro_batch, evaluation_time, step_time
from cerebras_wafer.hardware.workload import LayerWork, Workload

CALIBRATED_SYSTEMS = ("cs-2", "cs-3")
_FOLDER = files("cerebras_wafer") / "hardware"


class Use(StrEnum):
    """What a published point is for."""

    FIT = "fit"
    HELD_OUT = "held out"
    CHECK = "check"
    """Compared, not counted: older software, evaluation, the vendor's own estimate, settings that are not known."""


@dataclass(frozen=True)
class Point:
    """A published rate of one model at one batch, in samples a second of all `num_systems`; several runs of the
    same are one point, their mean. `factor` is the speed of the software release, that of R2.1 to R2.6 being 1."""

    system: str
    num_systems: int
    workload: str
    batch: int
    phase: str
    samples_per_second: float
    runs: int
    factor: float
    use: Use
    release: str
    source: str


@dataclass(frozen=True)
class Errors:
    """Relative errors of estimated rates: mean of the magnitudes, and the largest magnitude."""

    points: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Range:
    """What a system was measured with, smallest and largest; an estimate outside of it is not calibrated."""

    parameters: tuple[float, float]
    sequence: tuple[float, float]
    batch: tuple[float, float]


@dataclass(frozen=True)
class Calibration:
    """The constants of one system, on what they were fitted, and their errors."""

    system: str
    constants: Constants
    points: str
    measured: Range
    fit: Errors
    held_out: Errors
    left_out: Errors
    """Each model in turn left out of the fit, and predicted."""


@cache
def calibration(system: str) -> Calibration:
    """The calibration of a system that has one: see `CALIBRATED_SYSTEMS`."""
    data = _yaml(f"calibration/{system}.yaml")
    return Calibration(
        system=system,
        constants=Constants(**data["constants"]),
        points=data["points"],
        measured=Range(**{name: tuple(values) for name, values in data["measured"].items()}),
        **{name: Errors(**data["errors"][name]) for name in ("fit", "held_out", "left_out")},
    )


def calibrated_system(system: SystemSpec) -> str:
    """The calibrated system whose constants are taken: the system itself, the one it is `like`, or the nearest by
    multiply-adds a cycle."""
    for name in (system.name, system.like):
        if name in CALIBRATED_SYSTEMS:
            return str(name)
    return min(CALIBRATED_SYSTEMS, key=lambda name: abs(_half_rate(name) - system.half_multiply_adds_per_cycle))


def constants_for(system: SystemSpec, half_precision: bool = True) -> Constants:
    """The constants of a system. Rates of multiply-adds scale with the peak of a PE, in single precision too."""
    base = calibrated_system(system)
    constants = calibration(base).constants
    scale = system.multiply_adds_per_cycle(half_precision) / _half_rate(base)
    return replace(
        constants,
        multiply_adds_per_cycle=constants.multiply_adds_per_cycle * scale,
        attention_multiply_adds_per_cycle=constants.attention_multiply_adds_per_cycle * scale,
    )


@cache
def points() -> tuple[Point, ...]:
    """The published points; runs of the same model, batch, system and release are one."""
    grouped: dict[tuple[str, ...], list[dict[str, str]]] = {}
    text = (_FOLDER / "points" / "weight_streaming.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        key = tuple(row[name] for name in ("system", "workload", "batch", "phase", "use", "release_factor"))
        grouped.setdefault(key, []).append(row)
    return tuple(_point(rows) for rows in grouped.values())


def _point(rows: list[dict[str, str]]) -> Point:
    first = rows[0]
    return Point(
        system=first["system"],
        num_systems=int(first["num_systems"]),
        workload=first["workload"],
        batch=int(first["batch"]),
        phase=first["phase"],
        samples_per_second=fmean(float(row["samples_per_second"]) for row in rows),
        runs=len(rows),
        factor=float(first["release_factor"] or 1),
        use=Use(first["use"]),
        release=first["release"],
        source=first["source"],
    )


@cache
def published_micro_batches() -> dict[str, int]:
    """Micro-batches of one CS-2 that the vendor's own configurations name, by workload: a check of the SRAM."""
    text = (_FOLDER / "points" / "micro_batches.csv").read_text(encoding="utf-8")
    return {row["workload"]: int(row["micro_batch"]) for row in csv.DictReader(text.splitlines())}


@cache
def workloads() -> dict[str, Workload]:
    """The work of the models that the points are of, by name."""
    data = json.loads((_FOLDER / "calibration" / "workloads.json").read_text(encoding="utf-8"))
    return {name: tuple(LayerWork.from_data(layer) for layer in layers) for name, layers in data.items()}


def machine_of(point: Point, constants: Constants | None = None) -> Machine:
    """The machine a point was measured on, with the committed constants or others."""
    system = load_system(point.system)
    return Machine(system, constants or constants_for(system), num_csx=point.num_systems)


def micro_batch_of(point: Point, constants: Constants | None = None) -> int:
    """The micro-batch that the cost model chooses for a point."""
    batch = point.batch // point.num_systems
    return best_micro_batch(workloads()[point.workload], batch, machine_of(point, constants))


def predicted_samples_per_second(
    point: Point, constants: Constants | None = None, micro_batch: int | None = None
) -> float:
    """What the cost model says of a point."""
    machine = machine_of(point, constants)
    workload, batch = workloads()[point.workload], point.batch // point.num_systems
    micro_batch = micro_batch or micro_batch_of(point, constants)
    time = (evaluation_time if point.phase == "evaluation" else step_time)(workload, batch, micro_batch, machine)
    return point.factor * point.batch / time.total


def error(point: Point, constants: Constants | None = None) -> float:
    """Relative error of the predicted rate; positive where the model is too fast."""
    return predicted_samples_per_second(point, constants) / point.samples_per_second - 1


def errors_of(some: Iterable[Point], constants: Constants | None = None) -> Errors:
    """Mean and worst error over points."""
    magnitudes = [abs(error(point, constants)) for point in some]
    return Errors(len(magnitudes), fmean(magnitudes), max(magnitudes))


def points_of(system: str, *uses: Use) -> Iterator[Point]:
    """The points of a system that are for these uses."""
    return (point for point in points() if point.system == system and point.use in uses)


def constant_names() -> tuple[str, ...]:
    """The names of the fitted constants."""
    return tuple(field.name for field in fields(Constants))


@cache
def _half_rate(system: str) -> float:
    return load_system(system).half_multiply_adds_per_cycle


def _yaml(name: str) -> Any:
    folder: Traversable = _FOLDER
    return load_yaml((folder / name).read_text(encoding="utf-8"), name)
