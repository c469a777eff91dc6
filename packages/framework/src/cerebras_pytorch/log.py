"""The framework's log: standard output, in the form users of the real system know."""

import logging

logger = logging.getLogger("cerebras_pytorch")


class _StandardOutput(logging.Handler):
    """Prints, so that messages keep their order with what the script prints, wherever that goes by then."""

    def emit(self, record: logging.LogRecord) -> None:
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
