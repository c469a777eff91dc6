"""The bearer key: one key a cluster, read from a file only its owner can read."""

import hmac
from pathlib import Path

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError


def read_key(path: Path) -> str:
    """The API key in a file; an empty one is an error, since it would let everyone in."""
    key = path.read_text(encoding="ascii").strip()
    if not key:
        raise ValueError(f"the API key file {path} is empty")
    return key


def check_key(given: str | None, expected: str) -> None:
    """Raise `ReportedError` (auth.failed) unless the key is right; takes the same time whatever is wrong."""
    if not hmac.compare_digest((given or "").encode(), expected.encode()):
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.AUTHENTICATION_FAILED,
                message="the API key is missing or wrong",
                advice="Send it as `Authorization: Bearer KEY`; the cluster's home holds it in `api_key`.",
            )
        )
