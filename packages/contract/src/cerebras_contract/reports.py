"""The compile report: what the real compiler's `compile_report.txt` says, for programs."""

from cerebras_contract.model import ContractModel
from cerebras_contract.plans import Bound, CandidatePlan, MemoryEstimate, Mode, Phase, PlanWarning, Trust


class LayerReport(ContractModel):
    """One layer (weight streaming) or region (pipelined) of one training step on one system.

    `seconds` are of the whole step, all micro-batches; `utilization` is a fraction of the dense peak.
    `planned_as` names the layer of equal work that stands for it; regions stand for themselves.
    """

    name: str
    planned_as: str
    seconds: float
    utilization: float
    active_pes: int
    sram_bytes_per_pe: int
    weight_bytes: int
    output_bytes: int
    off_wafer_bytes: int
    bound: Bound


class KernelReport(ContractModel):
    """One kernel of one training step on one system. `compute_samples_per_second` is what the kernel alone
    would reach on its PEs."""

    name: str
    module: str
    kind: str
    phase: Phase
    layer: str
    seconds: float
    compute_samples_per_second: float
    utilization: float
    active_pes: int
    sram_bytes_per_pe: int
    fabric_bytes: int
    off_wafer_bytes: int
    bound: Bound


class Report(ContractModel):
    """Rates in samples/s of device time, all systems together; utilization as a fraction of the dense peak.

    `outside_layers_seconds` is the part of a weight-streaming step that is in no layer: fixed time of the step and
    waiting for the input.
    """

    artifact_key: str
    system: str
    mode: Mode
    mode_reason: str
    num_csx: int
    batch_size: int
    micro_batch: int
    step_seconds: float
    outside_layers_seconds: float
    samples_per_second: float
    compute_samples_per_second: float
    transmission_samples_per_second: float
    active_pes: int
    total_pes: int
    compute_utilization: float
    bound: Bound
    parameters: int
    memory: MemoryEstimate
    layers: list[LayerReport]
    kernels: list[KernelReport]
    candidates: list[CandidatePlan]
    warnings: list[PlanWarning]
    trust: Trust
