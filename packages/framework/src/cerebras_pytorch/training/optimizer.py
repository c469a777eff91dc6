"""The compiled update in place of `optimizer.step()`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.optimizer import constants_of, initialise_state, learning_rates, slots_of
from cerebras_pytorch.capture.step import parameters_by_name
from cerebras_wafer.simulator.execute import Engine
from cerebras_wafer.simulator.loss_scale import LossScaler, all_finite


class CompiledUpdate:
    """Runs the artifact's update program on the parameters and the state of the user's optimizer."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, engine: Engine, manifest: Manifest, loss_scaler: LossScaler
    ) -> None:
        self.loss_scaler = loss_scaler
        self._optimizer = optimizer
        self._engine = engine
        self._slots = slots_of(optimizer, parameters_by_name(model, manifest.trained))
        self._constants = constants_of(optimizer)
        self._trained = {slot.parameter for slot in self._slots}
        precision = manifest.precision
        self._check_finite = precision.compute_dtype.layout.overflows_early or precision.scales_loss
        initialise_state(optimizer, self._slots)

    def step(self) -> bool:
        """One update. Where gradients can overflow, a step with one that is not finite is skipped: then False.

        Nothing has changed then but the loss scale, and the optimizer's hooks are not called. A parameter that has
        no gradient, one frozen since it was compiled, stays as it is, with its state.
        """
        self._refuse_changed_constants()
        self._refuse_new_parameters()
        if self._check_finite:
            finite = all_finite(list(self._gradients().values()))
            self.loss_scaler.step_is_over(finite)
            if not finite:
                return False
        _call(self._optimizer, self._optimizer._optimizer_step_pre_hooks)
        rates = {f"rate:{number}": rate for number, rate in enumerate(learning_rates(self._optimizer))}
        self._engine.update({**self.tensors(), **self._gradients(), **rates})
        _call(self._optimizer, self._optimizer._optimizer_step_post_hooks)
        return True

    def _gradients(self) -> dict[str, torch.Tensor]:
        pairs = ((slot.name, slot.parameter.grad) for slot in self._slots)
        return {f"gradient:{name}": gradient for name, gradient in pairs if gradient is not None}

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
        pairs = list(zip(self._constants, now, strict=False))
        changed = sorted({key for old, new in pairs for key in old if old[key] != new[key]}) or ["parameter groups"]
        raise _changed(
            f"{', '.join(changed)} of {type(self._optimizer).__name__} changed since it was compiled",
            "Only the learning rate may change during training (for OneCycleLR: cycle_momentum=False).",
        )

    def _refuse_new_parameters(self) -> None:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self._trained:
                    raise _changed(
                        f"a parameter of shape {list(parameter.shape)} has a gradient, but none when it was compiled",
                        "Set requires_grad before compile; what is frozen then stays frozen.",
                    )


def _changed(message: str, advice: str) -> ReportedError:
    return ReportedError(ErrorReport(code=ErrorCode.RUN_HYPERPARAMETER_CHANGED, message=message, advice=advice))


def _call(optimizer: Optimizer, hooks: Mapping[int, Callable[..., Any]]) -> None:
    for hook in hooks.values():
        hook(optimizer, (), {})


def replace_step(optimizer: Optimizer, step: Any) -> None:
    """Let `optimizer.step()` do the compiled update; learning-rate schedulers go on working."""

    def compiled_step(closure: Any = None) -> None:
        if closure is not None:
            raise RuntimeError("optimizer.step(closure) cannot be compiled; call it without a closure")
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what a scheduler looks at
        step()

    compiled_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a later scheduler leaves it alone
    optimizer.step = compiled_step  # type: ignore[method-assign,assignment]
