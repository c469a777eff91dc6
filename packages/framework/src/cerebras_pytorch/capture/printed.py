"""What a forward prints while it is traced: lines without a tensor go to the user, the others are not shown."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout


class _Held(io.StringIO):
    """Holds a line until it is complete, and lets it go unless `is_refused` then; a debugger's prompt is flushed."""

    def __init__(self, is_refused: Callable[[], bool]) -> None:
        super().__init__()
        self._is_refused = is_refused
        self._shown = sys.stdout

    def write(self, text: str) -> int:
        super().write(text)
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        if text and not self._is_refused():
            self._shown.write(text)
            self._shown.flush()


@contextmanager
def held_output(is_refused: Callable[[], bool]) -> Iterator[None]:
    """Show nothing of what is printed inside from where it is refused: it would show tensors without values."""
    held = _Held(is_refused)
    with redirect_stdout(held):
        try:
            yield
        finally:
            held.flush()
