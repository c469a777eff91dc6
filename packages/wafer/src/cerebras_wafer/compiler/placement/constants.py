"""Constants of the pipelined cost model, read from `hardware/calibration/pipelined.yaml`."""

from functools import cache
from importlib.resources import files

from pydantic import ConfigDict

from cerebras_contract.model import ContractModel
from cerebras_contract.yaml_reader import load_yaml


class PipelinedConstants(ContractModel):
    """What `tools/calibrate_pipelined.py` fitted; the YAML file says from what, and what each one means."""

    model_config = ConfigDict(frozen=True)

    calibration_set: str
    half_multiply_adds_per_cycle: float
    fraction_of_peak: float
    adapter_cycles_per_element: float
    attention_cycles_per_element: float
    serial_cycles_per_column: float
    lookup_cycles_per_row: float
    loss_floor_cycles_per_row: float
    active_fraction: float
    usable_fraction_of_sram: float
    resident_factor: float
    stash_samples_per_stage: float
    link_cycles_per_element: float
    mean_error: float
    worst_error: float

    def multiply_adds_per_cycle(self, peak: float) -> float:
        """What a PE with this peak sustains. A higher peak than the measured system's is not believed."""
        return min(self.half_multiply_adds_per_cycle, self.fraction_of_peak * peak)


@cache
def load_constants() -> PipelinedConstants:
    """The committed constants."""
    name = "pipelined.yaml"
    text = (files("cerebras_wafer") / "hardware" / "calibration" / name).read_text(encoding="utf-8")
    return PipelinedConstants.model_validate(load_yaml(text, name))
