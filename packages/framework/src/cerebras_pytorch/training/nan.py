"""A loss or gradients that are not finite: what the log or the error says of them."""

import math

from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_wafer.simulator.nonfinite import NonFinite

ROLES = {
    "input": "input {} of the batch",
    "target": "target {} of the batch",
    "parameter": "parameter {}",
    "buffer": "buffer {}",
    "output": "output {} of the model, as the criterion was given it,",
    "tangent": "the gradient of output {}",
    "saved": "result {} of forward, kept for backward,",
}


def not_finite(step: int, loss: float | None, found: NonFinite | None, saved_step: int) -> ErrorReport:
    """The report of a step; `found` says where it began, and `saved_step` is that of the newest checkpoint or 0.

    Without a `loss`, or where that is finite, the gradients were not.
    """
    of_gradients = loss is None or math.isfinite(loss)
    what = f"gradients of step {step} are not finite" if of_gradients else f"the loss of step {step} is {loss}"
    message = f"{what}: {_origin(found)}" if found else what
    file, _, line = (found.source or "").rpartition(":") if found else ("", "", "")
    last = f"The newest checkpoint, of step {saved_step}, is from before. " if saved_step else ""
    look = "" if found else " `find_nan: true` in run.yaml names the operation that it began in."
    return ErrorReport(
        code=ErrorCode.RUN_NAN,
        message=message,
        file=file or None,
        line=int(line) if line else None,
        operation=found.operation if found else None,
        module=found.module if found else None,
        advice=f"{last}A smaller learning rate, clipped gradients, or a look at the data may help.{look}"
        " `on_nan: warn` only warns of it.",
    )


def _origin(found: NonFinite) -> str:
    if found.operation is None:
        kind, _, name = (found.role or "").partition(":")
        return f"{ROLES.get(kind, '{}').format(name)} held {found.kind} already"
    where = f"module {found.module}" if found.module else "the model itself"
    return f"the first operation whose output was not finite is {found.operation}, of {where}, with {found.kind}"
