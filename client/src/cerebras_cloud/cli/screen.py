"""The user's terminal while following: the job's bytes as they came, and a progress line below them."""

import sys
from typing import BinaryIO

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

ERASE_LINE = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class Screen:
    """Writes log bytes to `log` and lines for people to `console`, which may be the same terminal.

    The progress line is taken away before anything else is written, and comes back only where the log stands
    at the start of a line: so it can neither be mixed into a line of the log nor overwrite one.
    """

    def __init__(self, log: BinaryIO, console: Console, log_is_on_terminal: bool) -> None:
        self._log = log
        self._console = console
        self._log_is_on_terminal = log_is_on_terminal
        self._progress = ""
        self._is_drawn = False
        self._is_in_log_line = False

    @classmethod
    def of_this_process(cls) -> "Screen":
        """Log to stdout, the rest to stderr."""
        return cls(sys.stdout.buffer, Console(stderr=True, highlight=False), sys.stdout.isatty())

    @property
    def shows_progress(self) -> bool:
        return self._console.is_terminal

    def write_log(self, data: bytes) -> None:
        """Write bytes of the log, unchanged."""
        self._erase()
        self._log.write(data)
        self._log.flush()
        if data and self._log_is_on_terminal:
            self._is_in_log_line = not data.endswith(b"\n")
        self._draw()

    def say(self, text: str) -> None:
        """Write lines for people."""
        self._erase()
        if self._is_in_log_line and self.shows_progress:
            self._console.print()
        self._is_in_log_line = False
        self._console.print(text, markup=False, soft_wrap=True)
        self._draw()

    def show_progress(self, text: str) -> None:
        """Replace the progress line; an empty text takes it away."""
        self._erase()
        self._progress = text
        self._draw()

    def _draw(self) -> None:
        if self.shows_progress and self._progress and not self._is_in_log_line:
            # One column less than there are: a full line would make the terminal start another.
            line = Text(self._progress, no_wrap=True, style="dim")
            line.truncate(self._console.width - 1, overflow="ellipsis")
            self._console.print(line, end="")
            self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            self._console.control(ERASE_LINE)
            self._is_drawn = False
