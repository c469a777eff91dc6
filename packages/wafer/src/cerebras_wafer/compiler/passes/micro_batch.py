"""Choose the micro-batch: how many samples of a system's batch go through all layers together."""

from cerebras_contract.plans import CandidatePlan
from cerebras_wafer.errors import CompileError
from cerebras_wafer.hardware.costs import (
    Machine,
    divisors,
    fastest,
    feasible_micro_batches,
    residency,
    step_seconds_by_micro_batch,
)
from cerebras_wafer.hardware.workload import Workload


def batch_per_system(batch_size: int, num_csx: int) -> int:
    """Samples of each system; the systems share a batch evenly."""
    if batch_size % num_csx:
        raise CompileError(
            f"the batch of {batch_size} samples cannot be divided evenly among {num_csx} systems",
            advice=f"Choose a batch size that is a multiple of {num_csx}, or another num_csx.",
        )
    return batch_size // num_csx


def choose_micro_batch(
    workload: Workload, batch: int, wanted: int | str, machine: Machine
) -> tuple[int, list[CandidatePlan]]:
    """The micro-batch, and what a step would take with each one that was tried.

    `wanted` is "auto" (the fastest that fits), "explore" (the same) or a number of samples, which must divide the
    batch of a system and fit.
    """
    if isinstance(wanted, int):
        _check(workload, batch, wanted, machine)
        tried = [wanted]
    else:
        tried = feasible_micro_batches(workload, batch, machine)
    seconds = step_seconds_by_micro_batch(workload, batch, tried, machine)
    chosen = fastest(seconds)
    return chosen, [_candidate(workload, batch, number, seconds[number], chosen, machine) for number in tried]


def _check(workload: Workload, batch: int, wanted: int, machine: Machine) -> None:
    if wanted < 1 or batch % wanted:
        raise CompileError(
            f"a micro-batch of {wanted} samples does not divide the {batch} samples of a system",
            advice=f"Choose auto, or one of: {', '.join(map(str, sorted(divisors(batch))))}.",
        )
    held, largest = residency(workload, wanted, machine), max(feasible_micro_batches(workload, batch, machine))
    if wanted > largest:
        raise CompileError(
            f"a micro-batch of {wanted} samples does not fit: one of its layers holds {held.working_bytes / 1e9:.4g} GB"
            f" of activations while it runs, the wafer has room for {held.room_bytes / 1e9:.4g} GB",
            advice=f"Choose auto, or at most {largest} samples.",
        )


def _candidate(
    workload: Workload, batch: int, number: int, seconds: float, chosen: int, machine: Machine
) -> CandidatePlan:
    held = residency(workload, number, machine)
    return CandidatePlan(
        micro_batch=number,
        step_seconds=seconds,
        samples_per_second=batch * machine.num_csx / seconds,
        activations_bytes=round(held.kept_bytes + held.working_bytes),
        spilled_bytes=round(held.spilled_bytes),
        chosen=number == chosen,
    )
