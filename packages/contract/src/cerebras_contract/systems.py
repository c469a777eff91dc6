"""Systems as data: the figures of a simulated wafer-scale engine, read from a YAML file."""

from functools import cache
from importlib.resources import files

from pydantic import PositiveFloat, PositiveInt
from ruamel.yaml import YAML

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.model import ContractModel

DEFAULT_SYSTEM = "cs-2"


class SystemSpec(ContractModel):
    """Figures of one system. The YAML file names the source beside each number."""

    name: str
    engine: str
    fabric_columns: PositiveInt
    fabric_rows: PositiveInt
    clock_hz: PositiveFloat
    sram_bytes_per_pe: PositiveInt
    half_multiply_adds_per_cycle: PositiveFloat
    single_multiply_adds_per_cycle: PositiveFloat
    off_wafer_bytes_per_second: PositiveFloat
    effective_multiply_adds_per_cycle: PositiveFloat
    layer_overhead_seconds: PositiveFloat
    streaming_bytes_per_second: PositiveFloat
    gradient_bytes_per_parameter: PositiveFloat

    @property
    def processing_elements(self) -> int:
        return self.fabric_columns * self.fabric_rows

    @property
    def sram_bytes(self) -> int:
        return self.processing_elements * self.sram_bytes_per_pe

    @property
    def pe_cycles_per_second(self) -> float:
        return self.processing_elements * self.clock_hz


def system_names() -> list[str]:
    """Names of the systems that come with the emulator, sorted."""
    folder = files("cerebras_contract") / "data" / "systems"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


@cache
def load_system(name: str) -> SystemSpec:
    """The spec of a system by name; a `ReportedError` lists the names there are."""
    if name not in system_names():
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CONFIG_INVALID,
                message=f"there is no system {name!r}",
                advice=f"Choose one of: {', '.join(system_names())}.",
            )
        )
    text = (files("cerebras_contract") / "data" / "systems" / f"{name}.yaml").read_text(encoding="utf-8")
    return SystemSpec.model_validate(YAML(typ="safe", pure=True).load(text))
