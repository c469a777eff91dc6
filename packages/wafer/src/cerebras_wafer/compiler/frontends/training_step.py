"""The compiler's input: a training step as graphs, with the role of each input and output.

Roles are strings `role:name`: `parameter:conv1.weight`, `buffer:bn.running_mean`, `input:0`, `target:0`,
`output:0`, `tangent:0` (gradient of output 0), `gradient:conv1.weight`, `saved:3` (kept from forward for
backward), `state:conv1.weight/exp_avg`, `rate:0` (learning rate of parameter group 0), `loss:0`, `scale:0` (loss
scale).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx import GraphModule

from cerebras_contract.artifacts import Codegen, OptimizerSpec, PrecisionSpec, TensorSpec
from cerebras_contract.plans import Mode

SCALE = "scale:0"
"""The loss scale, an input of backward where precision wants one."""


@dataclass(frozen=True)
class Program:
    """A functional graph over flat tensors, and the role of each input and output in order.

    A graph of forward and backward together takes parameters, buffers and batch inputs, then tangents, and
    returns changed buffers and outputs, then gradients.
    """

    graph_module: GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Update:
    """An optimizer's update of parameters that are alike, one call for each entry of `calls`.

    Roles count the parameters of a call (`parameter:0`, `state:0/exp_avg`); an entry names them. An `elementwise`
    program takes the parameters of an entry, or any part of them, as one flat tensor of any length.
    """

    program: Program
    calls: tuple[tuple[str, ...], ...]
    elementwise: bool = False


@dataclass(frozen=True)
class WaferStep:
    """What the wafer does in one training step: forward, loss and backward, without the update beside it.

    Parameters and buffers go by the bare module's names. `state_elements` is what the optimizer keeps for each
    trained parameter, scalars aside; `tied` maps each further name of a parameter to its first, the trained one.
    """

    joint: Program
    loss: Program
    parameters: tuple[TensorSpec, ...]
    trained: tuple[str, ...]
    buffers: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    targets: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optimizer: OptimizerSpec
    state_elements: Mapping[str, int]
    tied: Mapping[str, str]
    batch_size: int


@dataclass(frozen=True)
class TrainingStep(WaferStep):
    """A whole captured training step: also the updates, and forward in eval mode."""

    updates: tuple[Update, ...]
    evaluate: Program
    in_eval_mode: tuple[str, ...]
    output_tree: str


@dataclass(frozen=True)
class CompileOptions:
    """What is decided outside the model. `system` is the name of a system's spec, or the path of one's own.

    `execution_mode` None: the compiler picks. `micro_batch` "auto": the fastest that fits; "explore": the same,
    and every candidate is listed.
    """

    system: str
    num_csx: int
    precision: PrecisionSpec
    execution_mode: Mode | None = None
    micro_batch: int | Literal["auto", "explore"] = "auto"
    codegen: Codegen = "interpret"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def tensor_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(name=name, shape=list(tensor.shape), dtype=dtype_name(tensor.dtype))
