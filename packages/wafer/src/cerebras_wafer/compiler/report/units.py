"""Numbers as people read them."""

from cerebras_contract.plans import Trust

KIB = 1024


def readable_size(count_bytes: float) -> str:
    """Bytes in the largest decimal unit that leaves a number above 1."""
    size, units = float(count_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:,.0f} {units[0]}" if units[0] == "B" else f"{size:,.2f} {units[0]}"


def readable_sram(count_bytes: float) -> str:
    """SRAM of a PE, in the binary unit in which it is built: 49,152 bytes are 48 KiB."""
    return f"{count_bytes:,.0f} B" if count_bytes < 100 else f"{count_bytes / KIB:.1f} KiB"


def readable_seconds(seconds: float) -> str:
    """Seconds in the largest unit that leaves a number above 1."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if (count := seconds * factor) >= 1:
            decimals = 3 if count < 10 else 2 if count < 100 else 1
            return f"{count:,.{decimals}f} {unit}"
    return f"{seconds * 1e9:.1f} ns" if seconds else "0"


def readable_count(count: float) -> str:
    """A count with a suffix: 124.4 M."""
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.1f}{suffix}"
    return f"{count:,.0f}"


def readable_rate(samples_per_second: float) -> str:
    """Samples a second: more digits where the rate is small."""
    return f"{samples_per_second:,.0f}" if samples_per_second >= 100 else f"{samples_per_second:,.3g}"


def error_band(trust: Trust) -> str:
    """How far off an estimate may be, in a few words."""
    if not trust.calibrated or trust.mean_error is None:
        return "uncalibrated"
    worst = "" if trust.worst_error is None else f", {trust.worst_error:.1%} at worst"
    return f"off by {trust.mean_error:.1%} in the mean{worst}"
