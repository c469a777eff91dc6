"""Digests: sha256 over canonical JSON, the same on every machine and in every process."""

import hashlib
import json
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces, so that equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_of_json(value: Any) -> str:
    """Hexadecimal sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes, read in chunks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
