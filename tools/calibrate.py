"""Fits the constants of the cost model to published training rates, and says how far off it is.

    make calibrate        fit, write the constants and their errors, print the table of docs/machine.md
    make calibrate CAPTURE=--capture    capture the models anew first (minutes)

Only points marked `fit` in hardware/points/weight_streaming.csv are fitted; those marked `held out` are predicted.
Their rule: of each model's batches in rising order every second one is held out, and two models wholly. Beside
that, each model in turn is left out of the fit and predicted.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import torch
from ruamel.yaml import YAML
from scipy.optimize import least_squares
from tools.published_models import MODELS, TokenLoss, batch, build

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_contract.systems import load_system
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.step import capture_step
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.passes.layers import workload_of
from cerebras_wafer.compiler.pipeline import kernel_graph
from cerebras_wafer.hardware import calibration as calibrated
from cerebras_wafer.hardware.calibration import Errors, Point, Use
from cerebras_wafer.hardware.costs import Constants, Machine, residency
from cerebras_wafer.hardware.workload import Workload

FOLDER = Path(calibrated.__file__).parent / "calibration"
START = Constants(
    multiply_adds_per_cycle=2.0,
    attention_multiply_adds_per_cycle=1.0,
    exposed_share=0.5,
    layer_seconds=3e-3,
    step_seconds=3e-3,
    input_samples_per_second=math.inf,
)
# Of CS-3 few points are published: what is not fitted there is as on CS-2. What the hosts deliver is not fitted
# either: it is the highest rate among the fitted points, which no larger batch exceeds.
FITTED = {
    "cs-2": (
        "multiply_adds_per_cycle", "attention_multiply_adds_per_cycle", "exposed_share", "layer_seconds",
        "step_seconds",
    ),
    "cs-3": ("multiply_adds_per_cycle", "exposed_share"),
}  # fmt: skip
KINDS = {
    "gpt2": "GPT", "gptj": "GPT-J", "llama": "Llama", "bert": "BERT", "bert-pretrain": "BERT",
    "perceptron": "a perceptron",
}  # fmt: skip
SHARE = "exposed_share"  # between 0 and 1; the logarithms of the others are fitted
ROBUST_SCALE = 0.05  # a point that is further off than this in log counts less than by its square
ROUNDS = 4  # of fitting with the micro-batches that the last constants choose


def captured_graph(name: str) -> KernelGraph:
    """The kernels of a published model with two blocks, for two samples."""
    kind, shape = MODELS[name]
    model = build(kind, shape if kind == "perceptron" else replace(shape, layers=2))
    example = divide(batch(kind, shape, 2))
    step = capture_step(model, TokenLoss(), torch.optim.AdamW(model.parameters()), example)
    options = CompileOptions("cs-2", 1, PrecisionSpec(compute_dtype="float16"))
    return kernel_graph(step, options, lambda _line: None)[1]


def published_workload(name: str, graph: KernelGraph) -> Workload:
    """The work of a published model from its graph of two blocks: the first repeated to the published depth."""
    count = MODELS[name][1].layers - 1
    layers = workload_of(graph)
    return tuple(replace(layer, count=count) if layer.name == "blocks.0" else layer for layer in layers)


def write_workloads() -> None:
    """Capture every published model."""
    data = {}
    for name in MODELS:
        print(f"capture {name}", file=sys.stderr)
        data[name] = [layer.as_data() for layer in published_workload(name, captured_graph(name))]
    (FOLDER / "workloads.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    calibrated.workloads.cache_clear()


def fit(points: Sequence[Point], base: Constants, names: Sequence[str]) -> Constants:
    """Constants that make the logarithms of the rates fit best; those not named stay as in `base`."""

    def constants(values: Sequence[float]) -> Constants:
        named = zip(names, values, strict=True)
        return replace(base, **{name: float(value) if name == SHARE else math.exp(value) for name, value in named})

    def residuals(values: Sequence[float], micro_batches: Sequence[int]) -> list[float]:
        guess = constants(values)
        return [
            math.log(calibrated.predicted_samples_per_second(point, guess, micro_batch) / point.samples_per_second)
            for point, micro_batch in zip(points, micro_batches, strict=True)
        ]

    values = [START.exposed_share if name == SHARE else math.log(getattr(base, name)) for name in names]
    lower = [0.0 if name == SHARE else -math.inf for name in names]
    upper = [1.0 if name == SHARE else math.inf for name in names]
    for _ in range(ROUNDS):
        micro_batches = [calibrated.micro_batch_of(point, constants(values)) for point in points]
        found = least_squares(
            residuals, values, args=(micro_batches,), bounds=(lower, upper), loss="soft_l1", f_scale=ROBUST_SCALE
        )
        values = found.x
    return constants(values)


def fit_system(system: str, base: Constants, leave_out: str = "") -> Constants:
    """The constants of a system from its fitted points, those of one model left out."""
    points = list(calibrated.points_of(system, Use.FIT))
    delivered = max(point.samples_per_second for point in points)
    if math.isinf(base.input_samples_per_second):
        base = replace(base, input_samples_per_second=delivered)
    return fit([point for point in points if model_of(point) != leave_out], base, FITTED[system])


def model_of(point: Point) -> str:
    """The model of a workload, whatever its sequence length."""
    return point.workload.removesuffix("-1024")


def left_out_errors(system: str, base: Constants) -> tuple[Errors, dict[str, Errors]]:
    """Errors of each model when it is left out of the fit: over all points, and a model."""
    points = list(calibrated.points_of(system, Use.FIT, Use.HELD_OUT))
    models = {
        model: calibrated.errors_of(
            [point for point in points if model_of(point) == model], fit_system(system, base, model)
        )
        for model in dict.fromkeys(map(model_of, points))
    }
    mean = sum(errors.mean * errors.points for errors in models.values()) / len(points)
    return Errors(len(points), mean, max(errors.worst for errors in models.values())), models


def write_system(system: str, constants: Constants, base: Constants) -> dict[str, Errors]:
    """Write the constants of a system with their errors; the errors of the models left out."""
    left_out, models = left_out_errors(system, base)
    errors = {
        "fit": calibrated.errors_of(calibrated.points_of(system, Use.FIT), constants),
        "held_out": calibrated.errors_of(calibrated.points_of(system, Use.HELD_OUT), constants),
        "left_out": left_out,
    }
    points = list(calibrated.points_of(system, Use.FIT, Use.HELD_OUT))
    data = {
        "points": f"{len(points)} published training rates of {system.upper()} ({families(points)})",
        "constants": {name: _rounded(value) for name, value in asdict(constants).items()},
        "measured": measured_range(points),
        "errors": {name: _errors_data(value) for name, value in errors.items()},
    }
    out = StringIO()
    yaml = YAML()
    yaml.width = 120
    yaml.dump(data, out)
    header = (
        "# Written by tools/calibrate.py, which says how. Fitted to the points marked `fit` of\n"
        "# points/weight_streaming.csv; errors are relative, of the rates.\n"
    )
    (FOLDER / f"{system}.yaml").write_text(header + out.getvalue(), encoding="utf-8")
    return models


def families(points: Sequence[Point]) -> str:
    """What kinds of models the points are of, for people."""
    return ", ".join(dict.fromkeys(KINDS[MODELS[point.workload][0]] for point in points))


def measured_range(points: Sequence[Point]) -> dict[str, list[float]]:
    """What the transformers among the points span."""
    shapes = [(MODELS[point.workload][1], point) for point in points if MODELS[point.workload][0] != "perceptron"]
    parameters = [
        sum(layer.count * layer.weights for layer in calibrated.workloads()[point.workload]) for _, point in shapes
    ]
    sequences = [shape.sequence for shape, _ in shapes]
    batches = [point.batch // point.num_systems for _, point in shapes]
    return {
        name: [_rounded(min(values)), _rounded(max(values))]
        for name, values in (("parameters", parameters), ("sequence", sequences), ("batch", batches))
    }


def table() -> str:
    """The points with what the model says of them, as a Markdown table."""
    lines = [
        "| system | model | batch | published | estimated | error | micro-batch | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in calibrated.points():
        estimated = calibrated.predicted_samples_per_second(point)
        name = point.workload + (" (evaluation)" if point.phase == "evaluation" else "")
        lines.append(
            f"| {point.system}{f' x {point.num_systems}' if point.num_systems > 1 else ''} | {name} | {point.batch}"
            f" | {point.samples_per_second:.4g} | {estimated:.4g} | {calibrated.error(point):+.1%}"
            f" | {calibrated.micro_batch_of(point)} | {use_text(point)} |"
        )
    return "\n".join(lines)


def capacity_table() -> str:
    """Published micro-batches of a system beside the largest that the plan would allow, whatever the batch."""
    lines = ["| model | published | largest that fits | spilled at the published |", "|---|---|---|---|"]
    machine = Machine(load_system("cs-2"), calibrated.constants_for(load_system("cs-2")))
    for name, published in calibrated.published_micro_batches().items():
        workload = calibrated.workloads()[name]
        sample = residency(workload, 1, machine)
        held = residency(workload, published, machine)
        fits = int(sample.room_bytes / sample.working_bytes)
        lines.append(f"| {name} | {published} | {fits} | {held.spilled_share:.0%} of {held.kept_bytes / 1e9:.0f} GB |")
    return "\n".join(lines)


def use_text(point: Point) -> str:
    """What a point is for, and its software where that differs."""
    return point.use + (f", {point.release} at {point.factor}" if point.factor != 1 else "")


def _errors_data(errors: Errors) -> dict[str, float]:
    return {"points": errors.points, "mean": round(errors.mean, 4), "worst": round(errors.worst, 4)}


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else round(float(f"{value:.4g}"), 9)


def main(say: Callable[[str], None] = print) -> None:
    """Fit CS-2, then CS-3 on top of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capture", action="store_true", help="capture the models anew")
    if parser.parse_args().capture:
        write_workloads()
    base = START
    for system in FITTED:
        constants = fit_system(system, base)
        models = write_system(system, constants, base)
        calibrated.calibration.cache_clear()
        for model, errors in models.items():
            say(f"{system} left out {model}: mean {errors.mean:.1%}, worst {errors.worst:.1%}")
        say(f"{system}: {calibrated.calibration(system)}")
        base = constants
    say(table())
    say(capacity_table())


if __name__ == "__main__":
    main()
