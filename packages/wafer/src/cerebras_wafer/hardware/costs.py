"""Cycles of elementary work on a whole fabric.

Multiply-adds use the effective rate of the system's spec, which comes from published training rates. The
figures an element are those of two published pipelined compile reports (release 1.6), in cycles of one PE.
"""

import math

from cerebras_contract.systems import SystemSpec

PE_CYCLES_PER_ELEMENT = {
    "elementwise": 1.8,  # residual add
    "activation": 95.0,  # GELU: 89-99 forward, 106 backward
    "norm": 21.0,  # LayerNorm: 13-29 forward, 17-31 backward
    "softmax": 55.0,  # dominated by exp
    "loss": 130.0,  # softmax cross-entropy: 110-150 in all
    "dropout": 53.0,
    "pooling": 1.8,  # not in the reports; taken as an elementwise operation
    "reduction": 1.8,  # likewise
    "embedding": 1.8,  # likewise
    "layout": 0.0,  # renames elements, moves none
    "matmul": 0.0,  # counted by multiply-adds
    "conv2d": 0.0,  # counted by multiply-adds
    "attention": 0.0,  # counted by multiply-adds
}


def compute_cycles(system: SystemSpec, kind: str, multiply_adds: float, elements: float) -> int:
    """Cycles in which the whole fabric does this work, at the effective rate of the spec."""
    pe_cycles = multiply_adds / system.effective_multiply_adds_per_cycle
    pe_cycles += elements * PE_CYCLES_PER_ELEMENT[kind]
    return math.ceil(pe_cycles / system.processing_elements)


def streaming_cycles(system: SystemSpec, weight_bytes: float) -> int:
    """Cycles that pass while bytes are streamed to or from the wafer."""
    return math.ceil(weight_bytes / system.streaming_bytes_per_second * system.clock_hz)


def peak_multiply_adds_per_second(system: SystemSpec, half_precision: bool) -> float:
    """Dense peak of the usable fabric at the modelled clock."""
    per_cycle = system.half_multiply_adds_per_cycle if half_precision else system.single_multiply_adds_per_cycle
    return system.pe_cycles_per_second * per_cycle
