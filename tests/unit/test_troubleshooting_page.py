"""The tests and the error codes that docs/troubleshooting.md names exist."""

import re
from pathlib import Path

from cerebras_contract.errors import ErrorCode

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_every_row_names_a_test_that_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= 6
    missing = [(file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")]
    assert missing == []


def test_every_code_exists_and_every_refusal_of_compile_is_told():
    named = set(re.findall(r"`((?:compile|script)\.\w+)`", PAGE))
    codes = {str(code) for code in ErrorCode}
    assert named <= codes
    assert {code for code in codes if code.startswith("compile.")} - named == {"compile.bug"}
