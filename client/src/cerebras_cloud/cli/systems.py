"""`systems`: the systems there are and their figures, without a cluster."""

import json
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from cerebras_contract.systems import SystemSpec, load_system, system_names

WIDTH_OF_A_FILE = 200  # characters a line, where the output is no terminal, so that no cell is folded
HEADER = ("SYSTEM", "ENGINE", "FABRIC", "PEs", "CLOCK", "SRAM", "PEAK FP16", "OFF-WAFER", "POWER", "MARKETED")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(systems)


def systems(
    system: Annotated[
        str | None, typer.Argument(metavar="[SYSTEM]", help="A name, or a YAML file of your own, for all its figures.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the systems, or show all figures of one. Peaks are dense, at the modelled grid and clock."""
    specs = [load_system(name) for name in ([system] if system else system_names())]
    if as_json:
        described = [_described(spec) for spec in specs]
        print(json.dumps(described[0] if system else described, indent=1))
        return
    width = None if sys.stdout.isatty() else WIDTH_OF_A_FILE
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    console.print(_figures(specs[0]) if system else _list(specs))


def _described(spec: SystemSpec) -> dict[str, Any]:
    """The spec, and what follows from it."""
    return spec.model_dump(mode="json") | {
        "processing_elements": spec.processing_elements,
        "sram_bytes": spec.sram_bytes,
        "half_flops_per_second": spec.half_flops_per_second,
    }


def _list(specs: list[SystemSpec]) -> Table:
    table = Table(*HEADER, box=box.SIMPLE_HEAD)
    for spec in specs:
        table.add_row(
            spec.name,
            spec.engine,
            f"{spec.fabric_columns:,} x {spec.fabric_rows:,}",
            f"{spec.processing_elements:,}",
            _in_units(spec.clock_hz, "Hz"),
            _in_units(spec.sram_bytes, "B"),
            _in_units(spec.half_flops_per_second, "FLOP/s"),
            _in_units(spec.off_wafer_bytes_per_second, "B/s"),
            _in_units(spec.full_load_watts, "W"),
            _marketed(spec),
        )
    return table


def _marketed(spec: SystemSpec) -> str:
    figures = spec.marketed
    parts = [
        f"{figures.cores:,} cores" if figures.cores else "",
        f"{_in_units(figures.half_flops_per_second, 'FLOP/s')}{' sparse' if figures.sparse else ''}"
        if figures.half_flops_per_second
        else "",
    ]
    return ", ".join(part for part in parts if part)


def _figures(spec: SystemSpec) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in _rows(spec):
        table.add_row(name, value)
    return table


def _rows(spec: SystemSpec) -> list[tuple[str, str]]:
    marketed = spec.marketed
    sparse = " (sparse)" if marketed.sparse else ""
    rows: list[tuple[str, str | None]] = [
        ("system", spec.name),
        ("engine", spec.engine),
        ("process", spec.process),
        ("constants of the cost model", f"those of {spec.like}" if spec.like else None),
        ("fabric", f"{spec.fabric_columns:,} x {spec.fabric_rows:,} = {spec.processing_elements:,} PEs"),
        ("clock", _in_units(spec.clock_hz, "Hz")),
        ("SRAM of a PE", f"{spec.sram_bytes_per_pe:,} B"),
        ("SRAM", _in_units(spec.sram_bytes, "B")),
        ("multiply-adds a cycle and PE, float16", f"{spec.half_multiply_adds_per_cycle:g}"),
        ("multiply-adds a cycle and PE, float32", f"{spec.single_multiply_adds_per_cycle:g}"),
        ("dense float16 peak", _in_units(spec.half_flops_per_second, "FLOP/s")),
        ("SRAM bandwidth", _in_units(spec.sram_bytes_per_second, "B/s")),
        ("fabric bandwidth", _in_units(spec.fabric_bytes_per_second, "B/s")),
        ("colours of the fabric", str(spec.fabric_colours)),
        ("off-wafer bandwidth", _in_units(spec.off_wafer_bytes_per_second, "B/s")),
        ("power, idle", _in_units(spec.idle_watts, "W")),
        ("power, full load", _in_units(spec.full_load_watts, "W")),
        ("largest cluster", f"{spec.largest_cluster:,} systems" if spec.largest_cluster else None),
        ("memory options", ", ".join(_in_units(size, "B") for size in spec.memory_options_bytes)),
        ("marketed: cores", f"{marketed.cores:,}" if marketed.cores else None),
        ("marketed: clock", _in_units(marketed.clock_hz, "Hz")),
        ("marketed: SRAM", _in_units(marketed.sram_bytes, "B")),
        ("marketed: float16 peak", f"{_in_units(marketed.half_flops_per_second, 'FLOP/s')}{sparse}"),
    ]
    return [(name, value) for name, value in rows if value]


def _in_units(amount: float | None, unit: str) -> str:
    """An amount in the largest decimal unit that leaves a number above 1; nothing for None."""
    if amount is None:
        return ""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= size:
            return f"{amount / size:,.4g} {prefix}{unit}"
    return f"{amount:,.4g} {unit}"
