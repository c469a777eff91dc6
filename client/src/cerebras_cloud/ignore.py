"""Which paths of a folder travel: gitignore rules, from the defaults and from `.cerebrasignore` files."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from cerebras_cloud.errors import BundleError

IGNORE_FILE = ".cerebrasignore"
VIRTUAL_ENVIRONMENT_MARK = "pyvenv.cfg"

DEFAULT_RULES = (
    ".git",
    ".hg",
    ".venv*/",
    "__pycache__/",
    "node_modules/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    "*.pyc",
    ".DS_Store",
    ".cerebras-cloud/",
    # What a local run leaves at the top; its folders ignore themselves.
    "/events.jsonl",
    "/result.json",
    "/run_summary.json",
)


# The group of pathspec's expressions that matches when a pattern means a folder above the path.
FOLDER_ABOVE = "ps_d"


@dataclass(frozen=True)
class _Rule:
    """One line of a file. `folders_only` where it ends with a slash, which `pattern` then lacks."""

    pattern: GitIgnoreSpecPattern
    folders_only: bool

    @classmethod
    def parse(cls, line: str) -> "_Rule":
        bare = line.rstrip()
        folders_only = bare.endswith("/")
        return cls(GitIgnoreSpecPattern(bare.removesuffix("/") if folders_only else line), folders_only)

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Whether the line means this very path. The folders above it are asked before, by who walks down."""
        if self.folders_only and not is_folder:
            return False
        found = self.pattern.match_file(path)
        return found is not None and not found.match.groupdict().get(FOLDER_ABOVE)


@dataclass(frozen=True)
class _Rules:
    """The rules of one file. They hold below `folder`, a path in the root with a slash, or empty."""

    folder: str
    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, folder: str, lines: Iterable[str]) -> "_Rules":
        rules = map(_Rule.parse, lines)
        return cls(folder, tuple(rule for rule in rules if rule.pattern.include is not None))

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether the path is ignored, by the last line that means it; None where none does."""
        below = path.removeprefix(self.folder)
        for rule in reversed(self.rules):
            if rule.matches(below, is_folder=is_folder):
                return rule.pattern.include
        return None


@dataclass(frozen=True)
class IgnoreRules:
    """Rules that hold in a folder; those of deeper files win, and in a file the last match."""

    layers: tuple[_Rules, ...]

    @classmethod
    def default(cls) -> "IgnoreRules":
        return cls((_Rules.parse("", DEFAULT_RULES),))

    def entering(self, folder: Path, path: str) -> "IgnoreRules":
        """The rules inside `folder`, whose path in the root is `path` (ends with a slash, or is empty)."""
        file = folder / IGNORE_FILE
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return self
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"cannot read {file}: {error}") from None
        try:
            return IgnoreRules((*self.layers, _Rules.parse(path, lines)))
        except ValueError as error:
            raise BundleError(f"{file}: {error}") from None

    def ignore(self, entry: os.DirEntry[str], path: str) -> bool:
        """Whether `entry`, whose path in the root is `path`, stays behind.

        A link to a folder is matched like a folder, unlike in git: `data/` also means a linked `data`.
        """
        is_folder = _leads_to_folder(entry)
        for rules in reversed(self.layers):
            verdict = rules.verdict(path, is_folder=is_folder)
            if verdict is not None:
                return verdict
        return is_folder and Path(entry.path, VIRTUAL_ENVIRONMENT_MARK).is_file()


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    """Whether `entry` is a folder or a link to one. A link that cannot be followed, as a loop, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False
