"""Systems as data: the figures of a simulated wafer-scale engine, read from a YAML file.

A system is named (`cs-2`), or is a file of the user's own (`my-wse4.yaml`, relative to the working directory), which
may say `like: cs-3` and then only what differs.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from cerebras_contract.model import ContractModel
from cerebras_contract.yaml_reader import checked, invalid, line_of, load_yaml, read_text

DEFAULT_SYSTEM = "cs-2"
FILE_ENDINGS = (".yaml", ".yml")

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class MarketedFigures(ContractModel):
    """What the vendor announces of a system. Shown beside the modelled figures; no estimate uses it."""

    model_config = ConfigDict(strict=True)

    cores: Count | None = None
    clock_hz: Amount | None = None
    sram_bytes: Count | None = None
    half_flops_per_second: Amount | None = None
    sparse: bool = False
    """Whether `half_flops_per_second` counts the zeros of a sparse model as work done."""


class SystemSpec(ContractModel):
    """Figures of one system. The YAML file names the source beside each number.

    Grid and clock are those that reproduce published compile reports, not the marketed ones. `like` names the
    system whose fitted constants of the cost model are taken, for want of measurements of this one.
    """

    model_config = ConfigDict(strict=True)  # '762' in quotes is not a number

    name: Name
    like: Name | None = None
    engine: str = Field(min_length=1)
    process: str | None = None
    fabric_columns: Count
    fabric_rows: Count
    clock_hz: Amount
    sram_bytes_per_pe: Count
    half_multiply_adds_per_cycle: Amount
    single_multiply_adds_per_cycle: Amount
    sram_bytes_per_second: Amount
    fabric_bytes_per_second: Amount
    fabric_colours: Count
    off_wafer_bytes_per_second: Amount
    idle_watts: Amount
    full_load_watts: Amount
    spare_processing_elements: int = Field(default=0, ge=0)
    """Elements beside the usable grid that stand in for defective ones."""
    largest_cluster: Count | None = None
    """Systems that one broadcast and reduce tree (SwarmX) joins."""
    memory_options_bytes: list[Count] = Field(default_factory=list)
    """Sizes in which the store of the weights (MemoryX) is offered."""
    marketed: MarketedFigures = MarketedFigures()

    @model_validator(mode="after")
    def _power_grows_with_load(self) -> Self:
        if self.idle_watts > self.full_load_watts:
            raise ValueError(f"idle_watts {self.idle_watts:g} is above full_load_watts {self.full_load_watts:g}")
        return self

    @property
    def processing_elements(self) -> int:
        return self.fabric_columns * self.fabric_rows

    @property
    def sram_bytes(self) -> int:
        return self.processing_elements * self.sram_bytes_per_pe

    @property
    def pe_cycles_per_second(self) -> float:
        return self.processing_elements * self.clock_hz

    def multiply_adds_per_cycle(self, half_precision: bool) -> float:
        """Dense peak of one PE."""
        return self.half_multiply_adds_per_cycle if half_precision else self.single_multiply_adds_per_cycle

    @property
    def half_flops_per_second(self) -> float:
        """Dense float16 peak of the usable grid at the modelled clock; a multiply-add is two operations."""
        return 2 * self.pe_cycles_per_second * self.half_multiply_adds_per_cycle


def system_names() -> list[str]:
    """Names of the systems that come with the emulator, sorted."""
    folder = files("cerebras_contract") / "data" / "systems"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def is_system_file(system: str) -> bool:
    """Whether a system is named by the path of a file."""
    return system.endswith(FILE_ENDINGS)


def load_system(system: str) -> SystemSpec:
    """The spec of a system by name, or of a file; a `ReportedError` says where the file is wrong."""
    return _read_own(Path(system)) if is_system_file(system) else _built_in(system)


@cache
def _built_in(name: str) -> SystemSpec:
    if name not in system_names():
        raise invalid(
            f"there is no system {name!r}",
            advice=f"Choose one of: {', '.join(system_names())}; or name a YAML file with the figures of your own.",
        )
    text = (files("cerebras_contract") / "data" / "systems" / f"{name}.yaml").read_text(encoding="utf-8")
    return SystemSpec.model_validate(load_yaml(text, f"{name}.yaml"))


def _read_own(path: Path) -> SystemSpec:
    text, file = read_text(path, "system"), str(path)
    content = load_yaml(text, file)
    if not isinstance(content, dict):
        return checked(SystemSpec, content, text, file)
    content = {"name": path.stem, **_inherited(content, text, file), **content}
    if content["name"] in system_names():
        line = line_of(text, "name")
        raise invalid(f"the name {content['name']!r} is taken", file, line, "Give it a name of its own: `name: ...`.")
    advice = None if "like" in content else "`like: cs-3` takes from there what the file does not say."
    return checked(SystemSpec, content, text, file, advice)


def _inherited(content: dict[str, Any], text: str, file: str) -> dict[str, Any]:
    """The figures of the system that the file is `like`. What was marketed of that one is not said of this one."""
    like = content.get("like")
    if like is None:
        return {}
    if like not in system_names():
        choices = ", ".join(system_names())
        raise invalid(f"like: there is no system {like!r}", file, line_of(text, "like"), f"Choose one of: {choices}.")
    return _built_in(like).model_dump(exclude={"name", "like", "engine", "marketed", "process"}) | {
        "engine": f"like {like}"
    }
