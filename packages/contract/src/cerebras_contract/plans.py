"""The plan: the part of an artifact that says what runs where, when, in how many cycles.

Execution takes its device time from here. Cycles are of the system's clock; bytes and multiply-adds of a kernel
are for one micro-batch on one system.
"""

from enum import StrEnum

from pydantic import Field

from cerebras_contract.model import ContractModel


class Phase(StrEnum):
    """Where in a training step a kernel runs."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


class Mode(StrEnum):
    """How a model lies on the wafer: one layer at a time, or all layers at once."""

    WEIGHT_STREAMING = "weight_streaming"
    PIPELINED = "pipelined"

    @property
    def words(self) -> str:
        return self.replace("_", " ")


class Bound(StrEnum):
    """What a kernel, a layer or a step waits for."""

    COMPUTE = "compute"
    MEMORY = "memory"
    FABRIC = "fabric"
    WEIGHT_IO = "weight I/O"
    INPUT = "input"
    OVERHEAD = "overhead"


class KernelPlan(ContractModel):
    """One kernel of the step.

    In weight streaming it has the whole fabric for `cycles`; pipelined, the region named in `region`.
    `utilization` is a fraction of the dense peak of its PEs while it runs. An update has no cycles: it runs
    beside the weights, off the wafer, or in the shadow of the region that holds them.
    """

    name: str
    kind: str
    phase: Phase
    module: str
    layer: str
    """The `LayerPlan` or the `RegionPlan` that its cycles are part of."""
    source: str | None
    operations: list[str]
    multiply_adds: int
    elements: int
    weight_bytes: int
    output_bytes: int
    cycles: int
    utilization: float
    processing_elements: int
    sram_bytes_per_pe: int
    fabric_bytes: int
    off_wafer_bytes: int
    bound: Bound

    @property
    def flops(self) -> int:
        """A multiply-add is two floating-point operations."""
        return 2 * self.multiply_adds


class LayerPlan(ContractModel):
    """One layer of a weight-streaming schedule: its compute is overlapped with the streaming of its weights.

    Cycles are for one micro-batch. Forward takes the longer of computing and streaming weights in, and a fitted
    share of the shorter; backward likewise, with weights in and gradients out; `overhead_cycles` come on top.
    `planned_as` names the layer of equal work that it was planned with: repeated layers are planned once. `weights`
    are the parameters that are brought in when it runs, and let go after.
    """

    name: str
    planned_as: str
    weights: list[str] = Field(default_factory=list)
    weight_bytes: int
    gradient_bytes: int
    forward_cycles: int
    backward_cycles: int
    weights_in_cycles: int
    gradients_out_cycles: int
    overhead_cycles: int
    total_cycles: int
    forward_sram_bytes_per_pe: int
    backward_sram_bytes_per_pe: int
    spilled_bytes: int
    bound: Bound


class RegionPlan(ContractModel):
    """One rectangle of PEs of a pipelined plan, `column` and `row` from the upper left corner of the fabric.

    `cycles` are for one sample; the slowest region sets the rate of the pipeline.
    """

    name: str
    column: int
    row: int
    width: int
    height: int
    kernels: list[str]
    cycles: int
    sram_bytes_per_pe: int
    utilization: float
    samples_per_second: float

    @property
    def processing_elements(self) -> int:
        return self.width * self.height


class RoutePlan(ContractModel):
    """The way of the activations from one region to another (and of their gradients back)."""

    source: str
    target: str
    hops: int
    colour: int
    bytes_per_sample: int


class CandidatePlan(ContractModel):
    """A micro-batch that was tried, and what a step would take with it."""

    micro_batch: int
    step_seconds: float
    samples_per_second: float
    activations_bytes: int
    spilled_bytes: int
    chosen: bool


class MemoryEstimate(ContractModel):
    """Bytes. In weight streaming weights, optimizer state and gradients live beside the wafer, activations on it;
    pipelined, everything lives on it. `peak_sram_bytes_per_pe` is of the fullest PE. `host_peak_bytes` is what the
    process that executes the step on this machine holds at most beyond what it held before; 0 where nothing was
    compiled to be executed."""

    weights_bytes: int
    optimizer_state_bytes: int
    gradients_bytes: int
    activations_bytes: int
    spilled_bytes: int
    wafer_sram_bytes: int
    peak_sram_bytes_per_pe: int
    host_peak_bytes: int = 0


class PlanWarning(ContractModel):
    """Something that compiles but wastes the wafer. `estimated_loss` is a fraction of the rate, where known."""

    code: str
    message: str
    module: str = ""
    file: str | None = None
    line: int | None = None
    estimated_loss: float | None = None


class Trust(ContractModel):
    """How far the cycles are to be trusted: on which measured points the constants were fitted, and their error.

    `family` is the kind of model as the calibration knows it. Errors are fractions, on points held out while
    fitting; None where nothing comparable was measured.
    """

    calibrated: bool
    family: str
    calibration_set: str
    mean_error: float | None = None
    worst_error: float | None = None
    statement: str


class Plan(ContractModel):
    """What runs where, when, in how many cycles. `fill` is the fraction of the PEs that are in use.

    In weight streaming a step's cycles are those of its layers, `micro_batches_per_step` times, a fixed
    `step_overhead_cycles`, and `input_wait_cycles` in which it waits for the hosts that feed it.
    """

    system: str
    clock_hz: float
    fabric_columns: int
    fabric_rows: int
    mode: Mode
    mode_reason: str
    num_csx: int
    batch_size: int
    micro_batch: int
    micro_batches_per_step: int
    kernels: list[KernelPlan]
    layers: list[LayerPlan]
    regions: list[RegionPlan]
    routes: list[RoutePlan]
    candidates: list[CandidatePlan]
    fill: float
    step_cycles: int
    step_overhead_cycles: int = 0
    input_wait_cycles: int = 0
    evaluation_cycles: int
    bound: Bound
    memory: MemoryEstimate
    warnings: list[PlanWarning]
    trust: Trust

    @property
    def step_seconds(self) -> float:
        """Device seconds of one training step."""
        return self.step_cycles / self.clock_hz

    @property
    def samples_per_second(self) -> float:
        """Samples a second of device time, all systems together."""
        return self.batch_size / self.step_seconds
