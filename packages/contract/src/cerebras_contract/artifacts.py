"""The artifact: what compile leaves in `compile/`, and what any number of run workers execute.

manifest.json   `Manifest`: what the artifact is made of and for, and the digest of every other file
plan.json       `Plan`: what runs where, when, in how many cycles
report.json     `Report`;  report.txt  the same for people
forward.pt2  loss.pt2  backward.pt2  update.pt2  evaluate.pt2    serialized functional ATen programs
"""

from enum import StrEnum

from pydantic import JsonValue

from cerebras_contract.model import ContractModel

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
PLAN_FILE = "plan.json"
REPORT_JSON_FILE = "report.json"
REPORT_TEXT_FILE = "report.txt"


class ProgramName(StrEnum):
    """FORWARD, LOSS, BACKWARD and UPDATE are one training step; EVALUATE is the forward pass in eval mode."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"
    EVALUATE = "evaluate"

    @property
    def file_name(self) -> str:
        return f"{self}.pt2"


class Phase(StrEnum):
    """Where in a training step a kernel runs."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


class TensorSpec(ContractModel):
    """Name, shape and dtype (as in `float32`) of a tensor."""

    name: str
    shape: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{self.shape}"


class PrecisionSpec(ContractModel):
    """`compute_dtype` is what values are rounded to at kernel edges; weights and sums stay float32."""

    compute_dtype: str = "float32"
    loss_scale: float = 1.0


class OptimizerSpec(ContractModel):
    """The optimizer whose update was compiled. `groups` holds, a parameter group, the names of its parameters
    and the hyperparameters that are constants of the program; the learning rate is data and not among them."""

    name: str
    groups: list[dict[str, JsonValue]]
    state: dict[str, list[str]]
    """For each trained parameter, the names of its state tensors in the order of the program's inputs."""


class ProgramSpec(ContractModel):
    """A program's file and its flat inputs and outputs, each named `role:name`, in order."""

    file: str
    inputs: list[str]
    outputs: list[str]


class Versions(ContractModel):
    """Versions that are ingredients of an artifact's key."""

    compiler: str
    torch: str


class Manifest(ContractModel):
    """What an artifact is. `ingredients` are the readable parts of the key, to say what changed."""

    schema_version: int = SCHEMA_VERSION
    artifact_key: str
    input_key: str
    created_at: float
    system: str
    num_csx: int
    batch_size: int
    precision: PrecisionSpec
    versions: Versions
    ingredients: dict[str, JsonValue]
    parameters: list[TensorSpec]
    trained: list[str]
    in_eval_mode: list[str]
    """Modules that stay in eval mode while the model is in train mode, such as a frozen BatchNorm."""
    buffers: list[TensorSpec]
    inputs: list[TensorSpec]
    targets: list[TensorSpec]
    outputs: list[TensorSpec]
    output_tree: str
    """How the flat outputs are nested in what the model returns, as PyTorch's pytree writes it."""
    optimizer: OptimizerSpec
    programs: dict[ProgramName, ProgramSpec]
    digests: dict[str, str]
    """sha256 of every file of the artifact but this one, by name."""


class KernelPlan(ContractModel):
    """One kernel of the step. `cycles` are of the whole fabric, for one micro-batch; 0 in phase update, which
    runs beside the weights, off the wafer."""

    name: str
    kind: str
    phase: Phase
    module: str
    layer: str
    """The `LayerPlan` that its cycles are part of."""
    source: str | None
    operations: list[str]
    multiply_adds: int
    elements: int
    weight_bytes: int
    output_bytes: int
    cycles: int


class LayerPlan(ContractModel):
    """One layer of the schedule: its compute is overlapped with the streaming of its weights.

    Cycles are of the whole fabric, for one micro-batch: the layer takes
    max(forward, weights in) + max(backward, weights in and gradients out) + overhead.
    """

    name: str
    weight_bytes: int
    gradient_bytes: int
    forward_cycles: int
    backward_cycles: int
    weights_in_cycles: int
    gradients_out_cycles: int
    overhead_cycles: int
    total_cycles: int
    bound: str


class MemoryEstimate(ContractModel):
    """Bytes. Weights, optimizer state and gradients live beside the wafer; activations live on it."""

    weights_bytes: int
    optimizer_state_bytes: int
    gradients_bytes: int
    activations_bytes: int
    wafer_sram_bytes: int


class Plan(ContractModel):
    """What runs where, when, in how many cycles; execution takes its device time from here."""

    schema_version: int = SCHEMA_VERSION
    system: str
    clock_hz: float
    mode: str
    num_csx: int
    batch_size: int
    micro_batch: int
    micro_batches_per_step: int
    kernels: list[KernelPlan]
    layers: list[LayerPlan]
    step_cycles: int
    evaluation_cycles: int
    memory: MemoryEstimate
    calibrated: bool
    trust: str
    """One sentence: how far the cycles are to be trusted."""

    @property
    def step_seconds(self) -> float:
        """Device seconds of one training step."""
        return self.step_cycles / self.clock_hz


class LayerReport(ContractModel):
    """A row of the report: one layer of one training step."""

    name: str
    seconds: float
    utilization: float
    weight_bytes: int
    output_bytes: int
    off_wafer_bytes: int
    bound: str


class Report(ContractModel):
    """The compile report: rates in samples/s of device time, utilisation as a fraction of the fabric's peak."""

    artifact_key: str
    system: str
    mode: str
    batch_size: int
    micro_batch: int
    samples_per_second: float
    compute_samples_per_second: float
    transmission_samples_per_second: float
    active_pes: int
    compute_utilization: float
    parameters: int
    memory: MemoryEstimate
    layers: list[LayerReport]
    trust: str
