"""Places in the user's code: of a running frame, of an exception, of a stack."""

import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import torch
from torch import nn

import cerebras_pytorch
import cerebras_wafer
from cerebras_wafer.compiler.frontends.places import shown
from cerebras_wafer.errors import CompileError

TORCH_FOLDER = f"{Path(torch.__file__).parent}/"
NOT_THE_USERS = (TORCH_FOLDER, *(f"{Path(str(p.__file__)).parent}/" for p in (cerebras_pytorch, cerebras_wafer)))
STANDARD_LIBRARY = f"{Path(os.__file__).parent}/"
INSTALLED = f"{Path(torch.__file__).parent.parent}/"
Place = tuple[str, int]


def is_users(file: str) -> bool:
    """Whether a source file is neither PyTorch's nor ours."""
    return file[:1] != "<" and not file.startswith(NOT_THE_USERS)


def place_of_frame(frame: FrameType | None) -> Place | None:
    """The innermost of the user's lines that led to a frame; never one of an installed package or of Python."""
    while frame is not None:
        if is_users_code(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return None


def place_of_traceback(trace: TracebackType | None) -> Place | None:
    """The innermost of the user's lines that a traceback went through, in the same way."""
    place = None
    while trace is not None:
        if is_users_code(trace.tb_frame.f_code.co_filename):
            place = shown(trace.tb_frame.f_code.co_filename), trace.tb_lineno
        trace = trace.tb_next
    return place


def module_of_frame(frame: FrameType | None, paths: dict[nn.Module, str]) -> str | None:
    """Path of the innermost module whose forward is running; None outside of any forward."""
    while frame is not None:
        if frame.f_code.co_name == "forward" and frame.f_code.co_argcount:
            module = frame.f_locals.get(frame.f_code.co_varnames[0])  # self, whatever it is called
            if isinstance(module, nn.Module) and module in paths:
                return paths[module]
        frame = frame.f_back
    return None


def place_of_function(function: object) -> Place | None:
    """The line of a function's `def`, if the user wrote it."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return (shown(code.co_filename), code.co_firstlineno) if code and is_users_code(code.co_filename) else None


@contextmanager
def located() -> Iterator[None]:
    """A refusal inside that names no place gets that of the user's line that called what this decorates."""
    try:
        yield
    except CompileError as error:
        place = place_of_frame(sys._getframe(1))
        if error.report.file is not None or error.report.faults or place is None:
            raise
        file, line = place
        raise CompileError(**{**dict(error.report), "file": file, "line": line}) from error


def stack_of(frame: FrameType | None) -> list[traceback.FrameSummary]:
    """The stack of a frame from the script's first line on, without what started it and without our own frames."""
    return _of_the_script(traceback.extract_stack(frame)) if frame is not None else []


def stack_of_traceback(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The stack in which an exception was raised, in the same form."""
    return _of_the_script(traceback.extract_tb(trace))


def _of_the_script(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    starters = ("<frozen runpy>", f"{STANDARD_LIBRARY}runpy.py", *NOT_THE_USERS[1:])
    return [one for one in frames if not one.filename.startswith(starters)]


def essential(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The user's own frames of a stack, and its innermost one whoever's that is."""
    own = [one for one in frames if is_users_code(one.filename)]
    return own if not frames or own[-1:] == frames[-1:] else [*own, frames[-1]]


def is_users_code(file: str) -> bool:
    """Whether a file is of the user's project: neither installed, nor of Python, nor ours."""
    installed = any(f"/{folder}/" in file for folder in ("site-packages", "dist-packages"))
    return is_users(file) and not installed and not file.startswith((STANDARD_LIBRARY, INSTALLED, f"{sys.prefix}/bin/"))


def stack_text(frames: list[traceback.FrameSummary]) -> str:
    """One line a frame, the outermost first."""
    return "\n".join(
        f"  {shown(one.filename)}:{one.lineno} in {one.name}" + (f": {one.line}" if one.line else "") for one in frames
    )


def first_line(error: BaseException) -> str:
    """The first line of what an exception says that says something, else its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
