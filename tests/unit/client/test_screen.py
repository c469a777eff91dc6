"""The terminal while following: the log's bytes stay whole around the progress line."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cerebras_cloud.cli.screen import Screen

PROGRESS = "execute running  step 3/9"


class Terminal(io.StringIO):
    """Takes log and console, as a terminal does, and shows what stands on it."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        lines, line = [], ""
        for piece in self.getvalue().replace("\r", "").split("\x1b[2K"):
            *whole, line = piece.split("\n")
            lines += whole
        return [*lines, line]


class Bytes:
    """The binary side of a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def write(self, data: bytes) -> None:
        self._terminal.write(data.decode())

    def flush(self) -> None:
        pass


def open_screen(terminal: Terminal) -> Screen:
    console = Console(file=terminal, force_terminal=True, color_system=None, width=60, highlight=False)
    return Screen(Bytes(terminal), console, log_is_on_terminal=True)  # type: ignore[arg-type]


@given(st.lists(st.sampled_from([b"one\n", b"half ", b"end\n", b"\n", PROGRESS]), min_size=1))
def test_every_byte_of_the_log_stands_on_the_terminal_and_no_progress_in_between(pieces):
    terminal = Terminal()
    screen = open_screen(terminal)
    for piece in pieces:
        if isinstance(piece, bytes):
            screen.write_log(piece)
        else:
            screen.show_progress(piece)
    screen.show_progress("")
    log = b"".join(piece for piece in pieces if isinstance(piece, bytes)).decode()
    assert terminal.shown() == log.split("\n")


def test_the_progress_line_stands_below_whole_lines_only():
    terminal = Terminal()
    screen = open_screen(terminal)
    screen.write_log(b"one\n")
    screen.show_progress(PROGRESS)
    assert terminal.shown() == ["one", PROGRESS]
    screen.write_log(b"half ")
    assert terminal.shown() == ["one", "half "]
    screen.write_log(b"a line\n")
    assert terminal.shown() == ["one", "half a line", PROGRESS]


def test_what_is_said_begins_a_line_of_its_own():
    terminal = Terminal()
    screen = open_screen(terminal)
    screen.write_log(b"no newline")
    screen.say("succeeded [not markup]")
    assert terminal.shown() == ["no newline", "succeeded [not markup]", ""]


@pytest.mark.parametrize("text", ["x" * 200, "日本" * 50])
def test_a_progress_line_never_fills_the_terminal(text):
    terminal = Terminal()
    open_screen(terminal).show_progress(text)
    assert Console(width=200).measure(terminal.shown()[-1]).maximum < 60


def test_without_a_terminal_there_is_no_progress_and_no_control_character():
    log, lines = io.BytesIO(), io.StringIO()
    screen = Screen(log, Console(file=lines, highlight=False), log_is_on_terminal=False)
    assert not screen.shows_progress
    screen.show_progress(PROGRESS)
    screen.write_log(b"\x00raw\xff")
    screen.say("end")
    assert (log.getvalue(), lines.getvalue()) == (b"\x00raw\xff", "end\n")
