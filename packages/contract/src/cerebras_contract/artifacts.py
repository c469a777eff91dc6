"""The artifact: what compile leaves in `compile/`, and what any number of run workers execute.

manifest.json   `Manifest`: what the artifact is made of and for, and the digest of every other file
plan.json       `plans.Plan`: what runs where, when, in how many cycles
report.json     `reports.Report`;  report.txt and report.html  the same for people
kernels.txt     the kernel graph, from which the step can be planned again for another system or batch
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
REPORT_PAGE_FILE = "report.html"
KERNELS_FILE = "kernels.txt"


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
