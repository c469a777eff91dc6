"""The compiled update in place of `optimizer.step()`."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from cerebras_contract.artifacts import Manifest
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.optimizer import constants_of, learning_rates
from cerebras_pytorch.training.trained import Trained
from cerebras_wafer.simulator.loss_scale import LossScaler
from cerebras_wafer.simulator.streaming import AfterLayer
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
        self.may_skip = precision.compute_dtype.layout.overflows_early or precision.scales_loss
        """Whether gradients can overflow."""

    def step(self, ready: Collection[str] | None = None) -> bool:
        """One update. Where gradients can overflow, a step with one that is not finite is skipped: then False.

        Nothing has changed then but the loss scale, and the optimizer's hooks are not called. A parameter that has
        no gradient, one frozen since it was compiled, stays as it is, with its state. `ready` names the parameters
        whose gradients are in the store; None: gradients are the parameters' own.
        """
        names = self._trained.with_gradient() if ready is None else ready
        self._refuse_changes()
        if self.may_skip:
            finite = self._trained.gradients_are_finite(names)
            self.loss_scaler.step_is_over(finite)
            if not finite:
                return False
        with self._hooks_called():
            self._trained.take_in()
            names = self._trained.with_gradient() if ready is None else ready
            self._updater.update(names, learning_rates(self._optimizer))
        return True

    def step_inside(self, backward: Callable[[AfterLayer], object]) -> None:
        """One update inside `backward`, which calls what it is given as soon as a layer's gradients are complete.

        Not where a step may be skipped: there all gradients have to be known first.
        """
        self._refuse_changes()
        with self._hooks_called():
            self._trained.take_in()
            rates = learning_rates(self._optimizer)
            backward(lambda names: self._updater.update(names, rates))

    @contextmanager
    def _hooks_called(self) -> Iterator[None]:
        _call(self._optimizer, self._optimizer._optimizer_step_pre_hooks)
        yield
        _call(self._optimizer, self._optimizer._optimizer_step_post_hooks)

    def _refuse_changes(self) -> None:
        self._refuse_changed_constants()
        self._refuse_new_parameters()

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
