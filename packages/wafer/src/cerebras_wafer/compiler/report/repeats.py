"""Repeated layers, shown once: how many layers were planned as each."""

from collections import Counter
from dataclasses import dataclass

from cerebras_contract.reports import KernelReport, LayerReport, Report


@dataclass(frozen=True)
class Shown:
    """The rows that are shown, each with how many times it stands in the step."""

    layers: list[tuple[LayerReport, int]]
    kernels: list[tuple[KernelReport, int]]


def shown(report: Report) -> Shown:
    """Layers that others were planned as, and the kernels in them.

    The time of a row is its own; with its count it is that of all the layers like it.
    """
    counts = Counter(layer.planned_as for layer in report.layers)
    hidden = {layer.name for layer in report.layers if layer.planned_as != layer.name}
    return Shown(
        layers=[(layer, counts[layer.name]) for layer in report.layers if layer.name not in hidden],
        kernels=[(kernel, counts[kernel.layer] or 1) for kernel in report.kernels if kernel.layer not in hidden],
    )
