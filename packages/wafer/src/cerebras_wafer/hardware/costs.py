"""Cycles of elementary work on a whole fabric.

Multiply-adds use the effective rate of the system's spec, which comes from published training rates. The
figures an element are those of two published pipelined compile reports (release 1.6), in cycles of one PE.
"""

import math
from collections.abc import Iterable

from cerebras_contract.systems import SystemSpec
from cerebras_wafer.hardware.work import WorkClass

PE_CYCLES_PER_ELEMENT: dict[WorkClass, float] = {
    WorkClass.ELEMENTWISE: 1.8,  # residual add
    WorkClass.ACTIVATION: 95.0,  # GELU: 89-99 forward, 106 backward
    WorkClass.NORM: 21.0,  # LayerNorm: 13-29 forward, 17-31 backward
    WorkClass.SOFTMAX: 55.0,  # dominated by exp
    WorkClass.SCORE: 0.0,
    WorkClass.LOSS: 130.0,  # softmax cross-entropy: 110-150 in all
    WorkClass.DROPOUT: 53.0,
    WorkClass.POOLING: 1.8,  # not in the reports; taken as an elementwise operation
    WorkClass.REDUCTION: 1.8,  # likewise
    WorkClass.EMBEDDING: 1.8,  # likewise
}


def compute_cycles(system: SystemSpec, multiply_adds: float, element_work: Iterable[tuple[WorkClass, float]]) -> int:
    """Cycles in which the whole fabric does this work, at the effective rate of the spec."""
    pe_cycles = multiply_adds / system.effective_multiply_adds_per_cycle
    pe_cycles += sum(elements * PE_CYCLES_PER_ELEMENT[work] for work, elements in element_work)
    return math.ceil(pe_cycles / system.processing_elements)


def streaming_cycles(system: SystemSpec, weight_bytes: float) -> int:
    """Cycles that pass while bytes are streamed to or from the wafer."""
    return math.ceil(weight_bytes / system.streaming_bytes_per_second * system.clock_hz)


def peak_multiply_adds_per_second(system: SystemSpec, half_precision: bool) -> float:
    """Dense peak of the usable fabric at the modelled clock."""
    per_cycle = system.half_multiply_adds_per_cycle if half_precision else system.single_multiply_adds_per_cycle
    return system.pe_cycles_per_second * per_cycle
