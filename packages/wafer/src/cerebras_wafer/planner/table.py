"""A comparison as text, for people and for programs."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

from cerebras_contract.planning import PlanRow
from cerebras_wafer.compiler.report.text import warning_text
from cerebras_wafer.compiler.report.units import readable_rate, readable_seconds
from cerebras_wafer.planner.compare import SECONDS_AN_HOUR, Combination

HEADER = (
    "SYSTEM", "SYSTEMS", "BATCH", "MODE", "FITS", "MICRO-BATCH", "SAMPLES/S", "ERROR", "UTILIZATION", "BOUND",
    "STEP", "TIME", "SYSTEM-HOURS",
)  # fmt: skip
CANDIDATES_HEADER = ("MICRO-BATCH", "STEP", "SAMPLES/S", "ACTIVATIONS", "SPILLED", "")
WORDS = frozenset({"SYSTEM", "MODE", "FITS", "ERROR", "BOUND", ""})  # columns that hold no numbers
UNKNOWN = "-"
WARNINGS_SHOWN = 10


def as_json(combinations: Sequence[Combination]) -> str:
    """A list of rows, a row a line."""
    rows = [json.dumps(combination.row.model_dump(mode="json")) for combination in combinations]
    return "[" + ",\n ".join(rows) + "]"


def as_text(combinations: Sequence[Combination]) -> str:
    """The table, then the reasons of what does not fit, the candidates where any were explored, the warnings, and
    how far to trust it."""
    parts = [_table(HEADER, [_cells(combination.row) for combination in combinations])]
    parts += _refusals(combination.row for combination in combinations if not combination.row.fits)
    parts += _modes(combination.row for combination in combinations if combination.row.fits)
    parts += [_candidates(combination) for combination in combinations if combination.candidates]
    parts += _warnings(combinations)
    parts += list(dict.fromkeys(combination.trust.statement for combination in combinations if combination.trust))
    return "\n\n".join(parts)


def _refusals(rows: Iterable[PlanRow]) -> list[str]:
    """A paragraph a reason, with the combinations that it refuses."""
    titles: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        titles[row.reason].append(f"  {_title(row)}")
    return ["\n".join([f"Does not fit: {reason}.", *refused]) for reason, refused in titles.items()]


def _modes(rows: Iterable[PlanRow]) -> list[str]:
    """Why a mode was picked, where the rows are of more than one: rates of different modes compare badly."""
    reasons: dict[tuple[str, str], None] = {}
    for row in rows:
        if row.mode:
            count = f"{row.num_csx} systems" if row.num_csx > 1 else "1 system"
            reasons[f"{row.mode.words}, {count}", row.reason] = None
    modes = {mode.split(",")[0] for mode, _ in reasons}
    return ["\n".join(["Modes:", *(f"  {mode}: {why}" for mode, why in reasons)])] if len(modes) > 1 else []


def _cells(row: PlanRow) -> tuple[str, ...]:
    start = (
        row.system,
        str(row.num_csx),
        f"{row.batch:,}",
        row.mode.words if row.mode else UNKNOWN,
        "yes" if row.fits else "no",
    )
    if row.samples_per_second is None or row.step_seconds is None or row.utilization is None:
        return (*start, *[UNKNOWN] * (len(HEADER) - len(start)))
    hours = row.system_hours
    return (
        *start,
        f"{row.micro_batch:,}",
        readable_rate(row.samples_per_second),
        "uncalibrated" if row.error_band is None else f"within {row.error_band:.0%}",
        f"{row.utilization:.2%}",
        row.bound or UNKNOWN,
        readable_seconds(row.step_seconds),
        UNKNOWN if hours is None else _duration(hours / row.num_csx),
        UNKNOWN if hours is None else f"{hours:,.3g}" if hours < 100 else f"{hours:,.0f}",
    )


def _warnings(combinations: Sequence[Combination]) -> list[str]:
    """One paragraph, if there are any: each warning once, however many combinations it is of."""
    found = list(dict.fromkeys(warning_text(warning) for each in combinations for warning in each.warnings))
    more = [f"  and {len(found) - WARNINGS_SHOWN} more"] if len(found) > WARNINGS_SHOWN else []
    lines = [f"  {warning}" for warning in found[:WARNINGS_SHOWN]]
    return ["\n".join(["Warnings:", *lines, *more])] if found else []


def _candidates(combination: Combination) -> str:
    rows = [
        (
            f"{candidate.micro_batch:,}",
            readable_seconds(candidate.step_seconds),
            readable_rate(candidate.samples_per_second),
            f"{candidate.activations_bytes / 1e9:,.2f} GB",
            f"{candidate.spilled_bytes / 1e9:,.2f} GB",
            "chosen" if candidate.chosen else "",
        )
        for candidate in combination.candidates
    ]
    return f"Micro-batches of {_title(combination.row)}:\n{_table(CANDIDATES_HEADER, rows)}"


def _title(row: PlanRow) -> str:
    mode = f", {row.mode.words}" if row.mode else ""
    return f"{row.num_csx} x {row.system}, batch {row.batch:,}{mode}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns that are never cut, numbers to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    to_the_left = [name in WORDS for name in header]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, to_the_left, strict=True)
        ).rstrip()
        for line in lines
    )


def _duration(hours: float) -> str:
    """Hours in the unit that people would use."""
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:.1f} h" if hours >= 1 else readable_seconds(hours * SECONDS_AN_HOUR)
