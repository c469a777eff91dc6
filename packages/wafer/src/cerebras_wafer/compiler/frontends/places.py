"""What an operation is called, and where it comes from: the user's module, file and line."""

from pathlib import Path

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

TORCH_FOLDER = str(Path(torch.__file__).parent)


def operation_name(target: object) -> str:
    """`aten.nonzero` for an operation; a name for anything else that is called in a graph."""
    if isinstance(target, OpOverload):
        return target._schema.name.replace("::", ".")
    return f"torch.{target.__name__}" if isinstance(target, HigherOrderOperator) else str(target)


def module_path(node: Node) -> str:
    """Path of the innermost user module an operation was called in; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def source_line(node: Node) -> tuple[str, int] | None:
    """File and line of the user's code that called an operation, the innermost outside of PyTorch, if any is.

    A file under the working directory is named from there, so that no plan depends on where a job's folder is.
    """
    frames = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith('File "')]
    users = [frame for frame in frames if TORCH_FOLDER not in frame]
    if not users:
        return None
    file, line, *_ = users[-1].removeprefix('File "').split('", line ')
    return shown(file), int(line.split(",")[0])


def shown(file: str) -> str:
    """A file under the working directory goes by its name from there."""
    return file.removeprefix(f"{Path.cwd()}/")


def place_text(node: Node) -> str | None:
    """The same as `train.py:17`."""
    place = source_line(node)
    return f"{place[0]}:{place[1]}" if place else None
