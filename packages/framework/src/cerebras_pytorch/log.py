"""The framework's log: standard output, in the form users of the real system know."""

import logging

from rich.console import Console

logger = logging.getLogger("cerebras_pytorch")
_above: Console | None = None


def show_above(console: Console | None) -> None:
    """Print above what this console keeps at the bottom of the terminal; None: there is nothing there any more."""
    global _above
    _above = console


class _StandardOutput(logging.Handler):
    """Prints, so that messages keep their order with what the script prints, wherever that goes by then."""

    def emit(self, record: logging.LogRecord) -> None:
        if _above is not None:
            _above.out(self.format(record), highlight=False)
        else:
            print(self.format(record), flush=True)  # noqa: T201


def set_up_log() -> None:
    """Write the framework's messages to standard output."""
    if logger.handlers:
        return
    handler = _StandardOutput()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s:   %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
