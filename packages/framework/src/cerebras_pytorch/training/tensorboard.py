"""Event files for TensorBoard, where run.yaml asks for them: every metric that is recorded, by step."""

import importlib
from pathlib import Path
from typing import Any

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError


def refuse_without_package() -> None:
    """Raise `ReportedError` where the package that writes event files is not installed."""
    _writer_module()


class EventFiles:
    """A folder of event files. A run that goes on hides what an earlier one wrote of the same steps."""

    def __init__(self, folder: Path) -> None:
        self._module = _writer_module()
        self._folder = folder
        self._writer: Any = None

    def add(self, step: int, values: dict[str, float]) -> None:
        """Values of a step, by name."""
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / ".cerebrasignore").write_text("*\n", encoding="utf-8")  # no bundle carries them
            self._writer = self._module.SummaryWriter(str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Bring what was added to the files."""
        if self._writer is not None:
            self._writer.close()


def _writer_module() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CONFIG_INVALID,
                message="runconfig.tensorboard asks for event files, and the package tensorboard is not installed",
                advice="Install it: pip install 'cerebras-emulator-pytorch[tensorboard]'; or take the key away.",
            )
        ) from None
