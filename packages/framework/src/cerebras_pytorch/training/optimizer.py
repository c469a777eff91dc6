"""The compiled update in place of `optimizer.step()`."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.optimizer import constants_of, learning_rates
from cerebras_pytorch.training.trained import Trained
from cerebras_wafer.simulator.loss_scale import LossScaler
from cerebras_wafer.simulator.update import Updater


class CompiledUpdate:
    """Runs the artifact's update programs on what the store holds of the user's model and optimizer."""

    def __init__(
        self, optimizer: Optimizer, trained: Trained, updater: Updater, manifest: Manifest, loss_scaler: LossScaler
    ) -> None:
        self.loss_scaler = loss_scaler
        self._optimizer = optimizer
        self._trained = trained
        self._updater = updater
        self._constants = constants_of(optimizer)
        precision = manifest.precision
        self._check_finite = precision.compute_dtype.layout.overflows_early or precision.scales_loss

    def step(self) -> bool:
        """One update. Where gradients can overflow, a step with one that is not finite is skipped: then False.

        Nothing has changed then but the loss scale, and the optimizer's hooks are not called. A parameter that has
        no gradient, one frozen since it was compiled, stays as it is, with its state.
        """
        self._refuse_changed_constants()
        self._refuse_new_parameters()
        if self._check_finite:
            finite = self._trained.gradients_are_finite()
            self.loss_scaler.step_is_over(finite)
            if not finite:
                return False
        _call(self._optimizer, self._optimizer._optimizer_step_pre_hooks)
        self._trained.take_in()
        self._updater.update(self._trained.with_gradient(), learning_rates(self._optimizer))
        _call(self._optimizer, self._optimizer._optimizer_step_post_hooks)
        return True

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
                if parameter.grad is not None and parameter not in self._trained.parameters:
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
