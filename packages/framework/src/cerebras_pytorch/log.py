"""The framework's log: standard output, in the form users of the real system know."""

import logging
import sys

logger = logging.getLogger("cerebras_pytorch")


def set_up_log() -> None:
    """Write the framework's messages to standard output, in order with what the script prints."""
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s:   %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
