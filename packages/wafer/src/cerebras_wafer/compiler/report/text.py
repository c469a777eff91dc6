"""The report for people, in the manner of a real compile_report.txt."""

from collections.abc import Iterable, Sequence

from cerebras_contract.plans import PlanWarning
from cerebras_contract.reports import KernelReport, LayerReport, Report
from cerebras_wafer.compiler.report.repeats import shown
from cerebras_wafer.compiler.report.units import (
    error_band,
    readable_rate,
    readable_seconds,
    readable_size,
    readable_sram,
)

SIMULATED = "Device time is simulated; training itself is computed on this machine's processor."
NAME_WIDTH = 26


def report_text(report: Report) -> str:
    """The whole of report.txt: the step, layers, kernels, candidates, warnings; repeated layers once."""
    rows = shown(report)
    blocks = [
        [f"Compile report for {report.artifact_key}", SIMULATED],
        _step(report),
        _memory(report),
        _table("Layers" if report.mode == "weight_streaming" else "Regions", *_layers(rows.layers, report.batch_size)),
        _table("Kernels", *_kernels(rows.kernels)),
        _candidates(report),
        _warnings(report.warnings),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _step(report: Report) -> list[str]:
    micro_batches = report.batch_size // (report.micro_batch * report.num_csx)
    systems = "1 system" if report.num_csx == 1 else f"{report.num_csx} systems"
    return _fields(
        ("System", f"{systems} {report.system}, {report.mode.words}: {report.mode_reason}"),
        ("Batch size", f"{report.batch_size}, as {micro_batches} x {report.micro_batch} on each system"),
        ("Parameters", f"{report.parameters:,}"),
        ("Samples/s", f"{readable_rate(report.samples_per_second)} ({error_band(report.trust)})"),
        ("Compute Samples/s", readable_rate(report.compute_samples_per_second)),
        ("Transmission Samples/s", readable_rate(report.transmission_samples_per_second)),
        ("Active PEs", f"{report.active_pes:,} of {report.total_pes:,}"),
        ("Compute Utilization", f"{report.compute_utilization:.4%}"),
        ("Step time", f"{readable_seconds(report.step_seconds)}, bound by {report.bound}{_outside(report)}"),
        ("Estimate", report.trust.statement),
    )


def _outside(report: Report) -> str:
    seconds = report.outside_layers_seconds
    return f"; {readable_seconds(seconds)} of it in no layer: fixed time and waiting for the input" if seconds else ""


def _memory(report: Report) -> list[str]:
    memory = report.memory
    sram_bytes_per_pe = memory.wafer_sram_bytes / report.total_pes
    return _fields(
        ("Weights", readable_size(memory.weights_bytes)),
        ("Optimizer state", readable_size(memory.optimizer_state_bytes)),
        ("Gradients", readable_size(memory.gradients_bytes)),
        (
            "Activations",
            f"{readable_size(memory.activations_bytes)} of {readable_size(memory.wafer_sram_bytes)} SRAM,"
            f" {readable_size(memory.spilled_bytes)} spilled",
        ),
        ("Fullest PE", f"{readable_sram(memory.peak_sram_bytes_per_pe)} of {readable_sram(sram_bytes_per_pe)}"),
        *_process_here(memory.host_peak_bytes),
    )


def _process_here(peak_bytes: int) -> list[tuple[str, str]]:
    """What executing takes of this machine; nothing is known of it where the step was only planned."""
    grows = f"grows by at most {readable_size(peak_bytes)} while it executes the step"
    return [("Process here", grows)] if peak_bytes else []


def _layers(rows: Iterable[tuple[LayerReport, int]], batch_size: int) -> tuple[list[str], list[list[str]]]:
    head = ["name", "", "time", "samples/s", "utilization", "PEs", "SRAM/PE", "weights", "output", "off-wafer", "bound"]
    return head, [
        [
            layer.name,
            _times(count),
            readable_seconds(layer.seconds),
            readable_rate(batch_size / layer.seconds) if layer.seconds else "",
            f"{layer.utilization:.2%}",
            f"{layer.active_pes:,}",
            readable_sram(layer.sram_bytes_per_pe),
            readable_size(layer.weight_bytes),
            readable_size(layer.output_bytes),
            readable_size(layer.off_wafer_bytes),
            layer.bound,
        ]
        for layer, count in rows
    ]


def _kernels(rows: Iterable[tuple[KernelReport, int]]) -> tuple[list[str], list[list[str]]]:
    head = ["name", "", "module", "time", "samples/s", "utilization", "PEs", "SRAM/PE", "fabric", "off-wafer", "bound"]
    return head, [
        [
            kernel.name,
            _times(count),
            kernel.module or "(model)",
            readable_seconds(kernel.seconds),
            readable_rate(kernel.compute_samples_per_second) if kernel.seconds else "",
            f"{kernel.utilization:.2%}",
            f"{kernel.active_pes:,}",
            readable_sram(kernel.sram_bytes_per_pe),
            readable_size(kernel.fabric_bytes),
            readable_size(kernel.off_wafer_bytes),
            kernel.bound,
        ]
        for kernel, count in rows
    ]


def _candidates(report: Report) -> list[str]:
    head = ["micro-batch", "step", "samples/s", "activations", "spilled", ""]
    return _table(
        "Micro-batches tried",
        head,
        [
            [
                str(tried.micro_batch),
                readable_seconds(tried.step_seconds),
                readable_rate(tried.samples_per_second),
                readable_size(tried.activations_bytes),
                readable_size(tried.spilled_bytes),
                "chosen" if tried.chosen else "",
            ]
            for tried in report.candidates
        ],
    )


def _warnings(warnings: Sequence[PlanWarning]) -> list[str]:
    return ["Warnings", *(f"  {warning_text(warning)}" for warning in warnings)] if warnings else []


def warning_text(warning: PlanWarning) -> str:
    """A warning on one line, with its place and, where known, what it costs."""
    place = "" if warning.file is None else f"{warning.file}:{warning.line}: "
    module = f"{warning.module}: " if warning.module else ""
    loss = "" if warning.estimated_loss is None else f" (costs about {warning.estimated_loss:.0%} of the rate)"
    return f"{place}{module}{warning.message}{loss} [{warning.code}]"


def _times(count: int) -> str:
    return "" if count == 1 else f"x {count}"


def _fields(*fields: tuple[str, str]) -> list[str]:
    return [f"{name:<{NAME_WIDTH}}{value}" for name, value in fields]


def _table(title: str, head: list[str], rows: list[list[str]]) -> list[str]:
    """Columns as wide as their content: words to the left, numbers to the right."""
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    to_the_left = {"name", "", "module", "bound"}
    lines = [
        "  ".join(
            f"{cell:<{width}}" if name in to_the_left else f"{cell:>{width}}"
            for name, cell, width in zip(head, row, widths, strict=True)
        ).rstrip()
        for row in [head, *rows]
    ]
    return [title, *(f"  {line}" for line in lines)]
