"""The compiled update in place of `optimizer.step()`."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.optimizer import constants_of, initialise_state, learning_rates, slots_of
from cerebras_pytorch.capture.step import parameters_by_name
from cerebras_wafer.simulator.execute import Engine


class CompiledUpdate:
    """Runs the artifact's update program on the parameters and the state of the user's optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, engine: Engine, manifest: Manifest) -> None:
        self.skipped_steps = 0
        self._optimizer = optimizer
        self._engine = engine
        self._slots = slots_of(optimizer, parameters_by_name(model, manifest.trained))
        self._constants = constants_of(optimizer)
        self._check_finite = manifest.precision.compute_dtype == "float16"
        initialise_state(optimizer, self._slots)

    def step(self) -> bool:
        """One update. In float16 a step whose gradients are not finite is skipped and counted: then False."""
        self._refuse_changed_constants()
        gradients = [_gradient(slot.parameter) for slot in self._slots]
        if self._check_finite and not torch.stack(torch._foreach_norm(gradients)).isfinite().all():
            self.skipped_steps += 1
            return False
        tensors = {f"rate:{number}": rate for number, rate in enumerate(learning_rates(self._optimizer))}
        for slot, gradient in zip(self._slots, gradients, strict=True):
            tensors[f"gradient:{slot.name}"] = gradient
        in_place = self.tensors()
        updated = self._engine.update({**tensors, **in_place})
        with torch.no_grad():
            torch._foreach_copy_([in_place[role] for role in updated], list(updated.values()))
        return True

    def tensors(self) -> dict[str, torch.Tensor]:
        """Trained parameters and optimizer state, by role."""
        state = {
            f"state:{slot.name}/{name}": value
            for slot in self._slots
            for name, value in self._optimizer.state[slot.parameter].items()
        }
        return {**{f"parameter:{slot.name}": slot.parameter.detach() for slot in self._slots}, **state}

    def _refuse_changed_constants(self) -> None:
        now = constants_of(self._optimizer)
        if now == self._constants:
            return
        changed = sorted(
            {key for old, new in zip(self._constants, now, strict=True) for key in old if old[key] != new[key]}
        )
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.RUN_HYPERPARAMETER_CHANGED,
                message=f"{', '.join(changed)} of {type(self._optimizer).__name__} changed since it was compiled",
                advice="Only the learning rate may change during training (for OneCycleLR: cycle_momentum=False).",
            )
        )


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def replace_step(optimizer: Optimizer, step: Any) -> None:
    """Let `optimizer.step()` do the compiled update; learning-rate schedulers go on working."""

    def compiled_step(closure: Any = None) -> None:
        if closure is not None:
            raise RuntimeError("optimizer.step(closure) cannot be compiled; call it without a closure")
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what a scheduler looks at
        step()

    compiled_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a later scheduler leaves it alone
    optimizer.step = compiled_step  # type: ignore[method-assign,assignment]
