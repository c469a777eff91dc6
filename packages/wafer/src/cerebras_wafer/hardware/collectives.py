"""Cycles of collectives on the fabric, after Luczynski et al., "Near-Optimal Wafer-Scale Reduce" (HPDC 2024).

A collective takes max(contention, energy / links) + distance + (2 ramps + 1) x depth cycles; the functions below
are that, worked out for each pattern. `words` are 32-bit words of a PE, a link carries one a cycle.
"""

import math

RAMP_CYCLES = 2  # between a router and its PE, one way
STEP_CYCLES = 2 * RAMP_CYCLES + 1  # a dependent step: up the ramp, the operation, down the ramp


def chain_reduce_cycles(words: int, elements: int) -> int:
    """Reduce over a row of `elements` PEs, each adding its own and passing the sum on."""
    return words + (2 * RAMP_CYCLES + 2) * (elements - 1)


def star_reduce_cycles(words: int, elements: int) -> int:
    """Every PE sends to one, which adds: good for a few words."""
    return words * (elements - 1) + 2 * RAMP_CYCLES + 1


def two_phase_reduce_cycles(words: int, elements: int, group: int) -> int:
    """Chains in groups of `group` PEs side by side, then a chain over the groups' sums.

    The root of a group takes part in both, so `words` pass twice.
    """
    if group in (1, elements):
        return chain_reduce_cycles(words, elements)
    groups = math.ceil(elements / group)
    depth = (group - 1) + (groups - 1)
    return 2 * words + (elements - 1) + STEP_CYCLES * depth


def broadcast_cycles(words: int, elements: int) -> int:
    """Along a row of PEs: routers copy as they forward."""
    return words + elements + 2 * RAMP_CYCLES


def broadcast_2d_cycles(words: int, columns: int, rows: int) -> int:
    """To a rectangle of PEs from one corner."""
    return words + columns + rows - 2 + 2 * RAMP_CYCLES + 1


def ring_all_reduce_cycles(words: int, elements: int) -> int:
    """Reduce-scatter and all-gather around a ring laid into a row."""
    steps = 2 * (elements - 1)
    return math.ceil(steps * words / elements) + 4 * elements - 6 + steps * STEP_CYCLES


def best_reduce_cycles(words: int, elements: int) -> int:
    """Over a row of PEs by the fastest of the patterns."""
    if elements < 2:
        return 0
    groups = {max(1, round(math.sqrt(elements))), elements}
    return min(
        star_reduce_cycles(words, elements),
        *(two_phase_reduce_cycles(words, elements, group) for group in groups),
    )
