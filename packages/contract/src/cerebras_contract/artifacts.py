"""The artifact: what compile leaves in `compile/`, and what any number of run workers execute.

manifest.json   `Manifest`: what the artifact is made of and for, and the digest of every other file
plan.json       `plans.Plan`: what runs where, when, in how many cycles
report.json     `reports.Report`;  report.txt and report.html  the same for people
kernels.txt     the kernel graph, from which the step can be planned again for another system or batch
code_0.inductor.pt2 ...    machine code for pieces of the programs, where it was asked for
forward.pt2  loss.pt2  backward.pt2  evaluate.pt2  update_0.pt2 ...    serialized functional ATen programs
"""

from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import Field, JsonValue

from cerebras_contract.model import ContractModel

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
PLAN_FILE = "plan.json"
REPORT_JSON_FILE = "report.json"
REPORT_TEXT_FILE = "report.txt"
REPORT_PAGE_FILE = "report.html"
KERNELS_FILE = "kernels.txt"


class ProgramName(StrEnum):
    """FORWARD, LOSS and BACKWARD, then the updates, are one training step; EVALUATE is forward in eval mode."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    EVALUATE = "evaluate"

    @property
    def file_name(self) -> str:
        return f"{self}.pt2"


Codegen = Literal["interpret", "inductor"]
"""How programs run: operation by operation, or as machine code that was generated when the artifact was made."""

GENERATED = (ProgramName.FORWARD, ProgramName.BACKWARD, ProgramName.EVALUATE)
"""The programs for which `inductor` generates code."""


def code_file_name(number: int) -> str:
    """The file of a piece of generated code."""
    return f"code_{number}.inductor.pt2"


def update_file_name(number: int) -> str:
    return f"update_{number}.pt2"


class TensorSpec(ContractModel):
    """Name, shape and dtype (as in `float32`) of a tensor."""

    name: str
    shape: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{self.shape}"


class ComputeFormat(StrEnum):
    """Number formats in which the wafer computes; the bits of each are in `_LAYOUTS`."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    CBFLOAT16 = "cbfloat16"

    @property
    def layout(self) -> "FormatLayout":
        return _LAYOUTS[self]

    @property
    def is_half(self) -> bool:
        """Whether the wafer computes in it at its rate for 16-bit values."""
        return self is not ComputeFormat.FLOAT32


class FormatLayout(NamedTuple):
    """Bits of a format beside its sign."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def size_bytes(self) -> int:
        return (1 + self.exponent_bits + self.mantissa_bits) // 8

    @property
    def overflows_early(self) -> bool:
        """Whether it becomes infinite before float32 does, so that gradients have to be looked at."""
        return self.exponent_bits < 8


_LAYOUTS = {
    ComputeFormat.FLOAT32: FormatLayout(8, 23),
    ComputeFormat.FLOAT16: FormatLayout(5, 10),
    ComputeFormat.BFLOAT16: FormatLayout(8, 7),
    ComputeFormat.CBFLOAT16: FormatLayout(6, 9),
}

PrecisionLevel = Literal[0, 1, 2]


class PrecisionSpec(ContractModel):
    """What of precision is in the compiled programs; weights, sums and the optimizer's state stay float32.

    `compute_dtype` is what values are rounded to at kernel edges, `precision_opt_level` says which (docs/precision.md).
    With `scales_loss`, backward takes a loss scale: its value is data, not part of the program.
    """

    compute_dtype: ComputeFormat = ComputeFormat.FLOAT32
    precision_opt_level: PrecisionLevel = 1
    scales_loss: bool = False

    def __str__(self) -> str:
        scaled = ", with a loss scale" if self.scales_loss else ""
        return f"{self.compute_dtype} at level {self.precision_opt_level}{scaled}"


class OptimizerSpec(ContractModel):
    """The optimizer whose update was compiled. `groups` holds, a parameter group, the names of its parameters
    and the hyperparameters that are constants of the program; the learning rate is data and not among them."""

    name: str
    groups: list[dict[str, JsonValue]]
    state: dict[str, list[str]]
    """For each trained parameter, the names of its state tensors in the order of the program's inputs."""


class CodeSpec(ContractModel):
    """The file of the code that was generated for the operations `first` up to `end` of a program, inputs and
    constants not counted. Operations that are alike share a file."""

    file: str
    first: int
    end: int


class ProgramSpec(ContractModel):
    """A program's file and its flat inputs and outputs, each named `role:name`, in order."""

    file: str
    inputs: list[str]
    outputs: list[str]
    code: list[CodeSpec] = Field(default_factory=list)


class UpdateCodeSpec(ContractModel):
    """The file of an elementwise update's generated code, which changes so many elements in place."""

    file: str
    elements: int


class UpdateSpec(ContractModel):
    """A program that updates parameters that are alike, in one call for each entry of `calls`.

    Its inputs and outputs count the parameters of a call: `parameter:0`, `gradient:0`, `state:0/exp_avg`;
    `rate:1` is the learning rate of parameter group 1. An entry of `calls` names the parameters: one, unless the
    optimizer updates several together. An `elementwise` program does the same to every element: it takes the
    parameters of an entry behind each other, or any part of them, as one flat tensor of any length (`parameter:0`).
    """

    file: str
    inputs: list[str]
    outputs: list[str]
    calls: list[list[str]]
    elementwise: bool = False
    code: UpdateCodeSpec | None = None


class Versions(ContractModel):
    """Versions that are ingredients of an artifact's key."""

    compiler: str
    torch: str


class Machine(ContractModel):
    """Where an artifact was made. The same artifact gives bitwise the same losses on another machine where these are
    the same; generated code runs only where `instruction_set` is."""

    processor: str
    instruction_set: str
    threads: int


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
    codegen: Codegen = "interpret"
    made_on: Machine
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
    updates: list[UpdateSpec]
    digests: dict[str, str]
    """sha256 of every file of the artifact but this one, by name."""
