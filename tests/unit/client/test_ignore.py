"""What stays behind: the defaults, and rules as git reads them."""

import subprocess
from pathlib import Path

import pytest

from cerebras_cloud.bundle import packed
from cerebras_cloud.errors import BundleError
from cerebras_cloud.ignore import IGNORE_FILE

TREE = (
    "train.py", "notes.txt", "keep.txt", "src/a.py", "src/a.txt", "src/deep/b.py", "src/deep/keep.txt",
    "data/x.bin", "data/raw/y.bin", "build/out.o", "src/build/out.o", "with space.txt", "#hash", "!bang",
)  # fmt: skip

RULES = {
    "a name anywhere": {"": "build/\n"},
    "a name at the top": {"": "/build\n/data/raw\n"},
    "a pattern with a folder": {"": "src/*.txt\n"},
    "two stars": {"": "**/deep/*.py\ndata/**\n"},
    "a negation": {"": "*.txt\n!keep.txt\n"},
    "a negation before its rule": {"": "!keep.txt\n*.txt\n"},
    "all but Python": {"": "*\n!*/\n!*.py\n"},
    "all but one folder": {"": "/*\n!/src\n"},
    "no way back into an ignored folder": {"": "data/\n!data/raw/\n!data/raw/y.bin\n"},
    "contents ignored, one back": {"": "data/*\n!data/raw\n"},
    "comments, blanks and escapes": {"": "# a comment\n\n\\#hash\n\\!bang\nwith\\ space.txt\n"},
    "character classes": {"": "[a-k]*.txt\nsrc/deep/[!a].py\n"},
    "a deeper file adds": {"src": "*.txt\n"},
    "a deeper file wins": {"": "*.txt\n", "src": "!*.txt\n", "src/deep": "keep.txt\n"},
    "a deeper file is anchored to its folder": {"src": "/build\n/a.py\ndeep/*.txt\n"},
    "a folder that ignores itself": {"data": "*\n"},
}


def write_tree(root: Path, rules: dict[str, str], names: tuple[str, ...] = TREE) -> None:
    files = dict.fromkeys(names, "") | {f"{folder}/{IGNORE_FILE}": text for folder, text in rules.items()}
    for name, text in files.items():
        path = root / name.removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def packed_names(root: Path) -> set[str]:
    with packed(root) as bundle:
        return set(bundle.names)


def git_names(root: Path) -> set[str]:
    """What git would take, by the same rules."""
    git = ["git", "-c", "core.quotePath=false"]
    subprocess.run([*git, "init", "--quiet", str(root)], check=True)
    listing = [*git, "-C", str(root), "ls-files", "-z", "--others", f"--exclude-per-directory={IGNORE_FILE}"]
    return set(filter(None, subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")))


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_rules_mean_what_git_takes_them_for(tmp_path, rules):
    write_tree(tmp_path, rules)
    assert packed_names(tmp_path) == git_names(tmp_path)


def test_caches_environments_and_remains_of_local_runs_stay_behind(tmp_path):
    left = (
        ".git/HEAD", ".hg/store", ".venv/bin/python", ".venv-other/x", "env/pyvenv.cfg", "env/bin/python",
        "src/__pycache__/a.pyc", "a.pyc", "node_modules/x.js", ".mypy_cache/x", ".pytest_cache/x", ".ruff_cache/x",
        ".ipynb_checkpoints/x", "src/.DS_Store", ".cerebras-cloud/api_key", "events.jsonl", "result.json",
    )  # fmt: skip
    taken = ("train.py", "data/x.bin", "src/events.jsonl", "src/result.json", "venv/notes.txt")
    write_tree(tmp_path, {}, (*left, *taken))
    assert packed_names(tmp_path) == set(taken)


def test_a_default_can_be_taken_back(tmp_path):
    write_tree(tmp_path, {"": "!result.json\n!*.pyc\n"}, ("result.json", "model.pyc"))
    assert packed_names(tmp_path) == {IGNORE_FILE, "result.json", "model.pyc"}


def test_a_rule_for_a_folder_means_a_linked_folder_too(tmp_path):
    write_tree(tmp_path, {"": "data/\n"}, ("elsewhere/x.bin",))
    (tmp_path / "data").symlink_to("elsewhere")
    assert packed_names(tmp_path) == {IGNORE_FILE, "elsewhere/x.bin"}


@pytest.mark.parametrize("content", [b"!\n", b"caf\xe9\n"])
def test_rules_that_cannot_be_read_are_said_so(tmp_path, content):
    (tmp_path / IGNORE_FILE).write_bytes(content)
    with pytest.raises(BundleError, match=IGNORE_FILE), packed(tmp_path):
        pass
