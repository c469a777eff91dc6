"""The lines of the compile log that say what the plan is."""

import heapq

from cerebras_contract.plans import Mode
from cerebras_contract.reports import Report
from cerebras_pytorch.log import logger
from cerebras_wafer.compiler.report.repeats import shown
from cerebras_wafer.compiler.report.text import warning_text
from cerebras_wafer.compiler.report.units import error_band, readable_rate, readable_seconds, readable_size

LAYERS_LOGGED = 10


def log_report(report: Report) -> None:
    """Mode, the slowest layers, memory, warnings, and the estimated rate with its error."""
    logger.info(f"Mode {report.mode.words}: {report.mode_reason}")
    _log_layers(report)
    memory = report.memory
    logger.info(
        f"Memory estimate: weights {readable_size(memory.weights_bytes)}, optimizer state"
        f" {readable_size(memory.optimizer_state_bytes)}, activations {readable_size(memory.activations_bytes)} of"
        f" {readable_size(memory.wafer_sram_bytes)} on the wafer"
    )
    for warning in report.warnings:
        logger.warning(warning_text(warning))
    logger.info(
        f"Estimated rate on {report.system}: {readable_rate(report.samples_per_second)} samples/s of device time"
        f" ({error_band(report.trust)})"
    )


def _log_layers(report: Report) -> None:
    rows = shown(report).layers
    slowest = heapq.nlargest(LAYERS_LOGGED, rows, key=lambda row: row[0].seconds * row[1])
    part = "Layer" if report.mode == Mode.WEIGHT_STREAMING else "Region"
    count_of_all = f"{len(report.layers)} {part.lower()}s; the slowest of them:"
    logger.info(f"{part}s:" if len(rows) == len(slowest) else count_of_all)
    for layer, count in slowest if len(rows) > len(slowest) else rows:
        times = "" if count == 1 else f" x {count}"
        logger.info(
            f"{part} {layer.name}{times}: {readable_seconds(layer.seconds)} a step, weights"
            f" {readable_size(layer.weight_bytes)}, bound by {layer.bound}"
        )
