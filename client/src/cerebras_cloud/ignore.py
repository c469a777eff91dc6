"""Which paths of a folder travel: gitignore rules, from the defaults and from `.cerebrasignore` files."""

import os
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

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
)


@dataclass(frozen=True)
class _Rules:
    """The rules of one file. They hold below `folder`, a path in the root with a slash, or empty."""

    folder: str
    spec: GitIgnoreSpec


@dataclass(frozen=True)
class IgnoreRules:
    """Rules that hold in a folder; those of deeper files win, and in a file the last match."""

    layers: tuple[_Rules, ...]

    @classmethod
    def default(cls) -> "IgnoreRules":
        return cls((_Rules("", GitIgnoreSpec.from_lines(DEFAULT_RULES)),))

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
            return IgnoreRules((*self.layers, _Rules(path, GitIgnoreSpec.from_lines(lines))))
        except ValueError as error:
            raise BundleError(f"{file}: {error}") from None

    def ignore(self, entry: os.DirEntry[str], path: str) -> bool:
        """Whether `entry`, whose path in the root is `path`, stays behind.

        A link to a folder is matched like a folder, unlike in git: `data/` also means a linked `data`.
        """
        subject = f"{path}/" if entry.is_dir() else path
        for rules in reversed(self.layers):
            verdict = rules.spec.check_file(subject.removeprefix(rules.folder)).include
            if verdict is not None:
                return verdict
        return entry.is_dir() and Path(entry.path, VIRTUAL_ENVIRONMENT_MARK).is_file()
