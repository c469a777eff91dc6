"""A whole training step as one call: forward, loss, backward and update, without autograd's graph around them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cerebras_pytorch.capture.batch import flat_tensors
from cerebras_pytorch.training.state import CompiledStep

Step = Callable[[], bool]
CountStep = Callable[[Step], None]


class WholeStep:
    """What `compiled_model.train_step` calls. `count_step` runs an update and counts the step."""

    def __init__(self, compiled: CompiledStep, count_step: CountStep) -> None:
        self._compiled = compiled
        self._count_step = count_step

    def __call__(self, *batch: Any) -> Tensor:
        model, optimizer = self._compiled.model, self._compiled.optimizer
        if len(batch) < 2:
            raise TypeError("train_step takes what a batch has: the inputs, then the target")
        if not model.model.training:
            raise RuntimeError("train_step trains: put the model in train mode with model.train()")
        if hooked := self._compiled.trained.hooked():
            raise RuntimeError(
                f"train_step calls no hooks, and the gradient of {min(hooked)} has one: write the loop out"
            )
        inputs = flat_tensors(batch[:-1])
        model.check_batch(inputs)
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            outputs, saved = model.run_forward(inputs)
            loss, tangents = self._loss(outputs, batch[-1])
            self._count_step(lambda: self._backward_and_update(saved, tangents))
        return loss

    def _loss(self, outputs: list[Tensor], target: Any) -> tuple[Tensor, list[Tensor]]:
        """The loss, and its gradients by the outputs that have any."""
        model = self._compiled.model
        leaves = [value.detach() for value in outputs]
        wanted = [leaves[number].requires_grad_() for number in model.differentiable]
        with torch.enable_grad():
            loss = self._compiled.loss(model.nested(leaves), target)
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        return loss.detach(), list(gradients)

    def _backward_and_update(self, saved: list[Tensor], tangents: list[Tensor]) -> bool:
        model, update, trained = self._compiled.model, self._compiled.update, self._compiled.trained
        if trained.is_streamed and not update.may_skip:
            update.step_inside(lambda after_layer: model.gradients(saved, tangents, after_layer=after_layer))
            return True
        gradients = model.gradients(saved, tangents)
        trained.take_in_gradients(gradients)
        return update.step(ready=gradients)
