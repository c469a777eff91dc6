"""What the documentation names exists."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
NAMED = re.findall(r"`(cerebras_[\w.]+):([\w.]+)`", (ROOT / "docs" / "flow.md").read_text())


def test_the_flow_names_functions():
    assert len(NAMED) > 25


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_every_function_of_the_flow_exists(module, name):
    found = reduce(getattr, name.split("."), importlib.import_module(module))
    assert callable(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
