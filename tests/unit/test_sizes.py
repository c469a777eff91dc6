"""Functions and files stay short enough to be read in one go."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES, FUNCTION_LINES = 500, 60
SOURCES = sorted(
    path
    for folder in ("packages", "services", "client", "tools", "examples", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "migrations/versions" not in path.as_posix()
)


def test_there_is_something_to_measure():
    assert len(SOURCES) > 100


def test_no_file_is_too_long():
    assert {path.name: n for path in SOURCES if (n := len(path.read_text().splitlines())) > FILE_LINES} == {}


def test_no_function_is_too_long():
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert found == {}
