"""The compiled loss in place of the criterion's forward."""

import math
from typing import Any

from torch import Tensor, nn

from cerebras_contract.artifacts import Manifest
from cerebras_pytorch.capture.batch import flat_tensors
from cerebras_pytorch.training.refused_batch import LOSS, batch_refused
from cerebras_wafer.compiler.frontends.training_step import dtype_name
from cerebras_wafer.simulator.execute import Engine


class CompiledLoss:
    """Runs the artifact's loss program where outputs and target are what it was compiled for.

    Elsewhere (a batch of evaluation that is not full, other arguments) it is the user's criterion. It remembers
    the losses of training, those that have a gradient, until they are taken.
    """

    def __init__(self, criterion: nn.Module, engine: Engine, manifest: Manifest) -> None:
        self._users_forward = criterion.forward
        self._criterion = criterion
        self._engine = engine
        self._outputs = len(manifest.outputs)
        self._expected = [(spec.shape, spec.dtype) for spec in (*manifest.outputs, *manifest.targets)]
        self._losses: list[float] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        tensors = flat_tensors(arguments)
        given = [(list(tensor.shape), dtype_name(tensor.dtype)) for tensor in tensors]
        with batch_refused(LOSS):
            if named or len(arguments) != 2 or given != self._expected:
                loss = self._users_forward(*arguments, **named)
            else:
                loss = self._engine.loss(self._by_role(tensors))
        if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
            self._losses.append(loss.item())
            if not math.isfinite(self._losses[-1]):
                self._engine.look_for_non_finite()
        return loss

    def take(self) -> float | None:
        """The mean of the losses since this was last asked; None where there was none."""
        losses, self._losses = self._losses, []
        return sum(losses) / len(losses) if losses else None

    def _by_role(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        outputs = {f"output:{number}": tensor for number, tensor in enumerate(tensors[: self._outputs])}
        targets = {f"target:{number}": tensor for number, tensor in enumerate(tensors[self._outputs :])}
        buffers = {f"buffer:{name}": buffer for name, buffer in self._criterion.named_buffers()}
        parameters = {f"parameter:{name}": value for name, value in self._criterion.named_parameters()}
        return {**outputs, **targets, **buffers, **parameters}
