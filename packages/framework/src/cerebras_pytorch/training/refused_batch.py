"""A batch whose values the compiled step cannot take, such as a label out of range: what is reported of it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.stacks import place_of_frame
from cerebras_pytorch.process import current_process
from cerebras_wafer.simulator.failing import ProgramFailed

LOSS = "the loss"

_INDEX_ADVICE = (
    "Look at the data of this batch: labels go from 0 to the number of classes - 1, and an index from 0 to the length"
    " of what it indexes - 1 (the rows of an embedding's table)."
)
_OTHER_ADVICE = "Look at the data of this batch: what the loader yields in this step is not like what came before."


@contextmanager
def batch_refused(what: str) -> Iterator[None]:
    """Report what a program, or the user's criterion, raises inside on the values of a batch; `what` is being run."""
    try:
        yield
    except (ProgramFailed, IndexError) as error:
        failure = error if isinstance(error, ProgramFailed) else ProgramFailed(error)
        raise ReportedError(_report(what, failure)) from error


def _report(what: str, failure: ProgramFailed) -> ErrorReport:
    process = current_process()
    message = f"{what} of step {process.last_step + 1} cannot be computed: {str(failure).rstrip('.')}"
    if failure.operation is not None:
        where = f", of module {failure.module}," if failure.module else ""
        message += f"; {failure.operation}{where} was given {failure.operands}"
    # A criterion of PyTorch's has no line of the user's but that of compile: the loop's line is a better place.
    file, _, line = (failure.source if what != LOSS and failure.source else "").rpartition(":")
    place = (file, int(line)) if file else place_of_frame(sys._getframe(1))
    return ErrorReport(
        code=ErrorCode.SCRIPT_RAISED,
        message=message,
        file=place[0] if place else None,
        line=place[1] if place else None,
        operation=failure.operation,
        module=failure.module,
        advice=_INDEX_ADVICE if failure.is_index else _OTHER_ADVICE,
    )
