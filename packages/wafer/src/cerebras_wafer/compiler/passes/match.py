"""Match: cover the captured graphs with kernels of the library."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch
from torch._ops import OpOverload
from torch.fx import Node

from cerebras_contract.artifacts import Phase
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.compiler.ir.kernels import Kernel, KernelKind
from cerebras_wafer.compiler.passes.operations import kernel_kind, multiply_adds
from cerebras_wafer.errors import CompileError

TORCH_FOLDER = str(Path(torch.__file__).parent)


@dataclass
class _Group:
    """Neighbouring operations of one module that one kernel covers."""

    kind: KernelKind
    module: str
    nodes: list[Node] = field(default_factory=list)


def match(phase: Phase, program: Program) -> list[Kernel]:
    """Kernels that cover a program, in its order.

    Raises `CompileError` naming every operation that no kernel covers, with its module and source line.
    """
    graph = program.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    parameters = {
        node: role.removeprefix("parameter:")
        for node, role in zip(placeholders, program.inputs, strict=True)
        if role.startswith("parameter:")
    }
    operations = [node for node in graph.nodes if isinstance(node.target, OpOverload)]
    _refuse_uncovered(operations)
    names: dict[str, int] = {}
    return [_kernel(phase, group, parameters, names) for group in _groups(operations)]


def kernels_of_update(program: Program, optimizer: str) -> list[Kernel]:
    """The optimizer's update as one elementwise kernel: it runs beside the weights, off the wafer."""
    operations = [node for node in program.graph_module.graph.nodes if isinstance(node.target, OpOverload)]
    names = tuple(sorted({_name(node) for node in operations}))
    elements = sum(_elements(node) for node in operations)
    written = sum(_value_bytes(node.meta.get("val")) for node in operations)
    return [
        Kernel(
            name=f"optimizer.{optimizer}",
            kind=KernelKind.ELEMENTWISE,
            phase=Phase.UPDATE,
            module="optimizer",
            source=None,
            operations=names,
            multiply_adds=0,
            elements=elements,
            output_bytes=written,
            parameters=(),
        )
    ]


def module_path(node: Node) -> str:
    """Path of the innermost user module an operation was called in; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def source_line(node: Node) -> tuple[str, int] | None:
    """File and line of the user's code that called an operation, the innermost outside of PyTorch."""
    frames = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith('File "')]
    users = [frame for frame in frames if TORCH_FOLDER not in frame] or frames
    if not users:
        return None
    file, line, *_ = users[-1].removeprefix('File "').split('", line ')
    return file, int(line.split(",")[0])


def _refuse_uncovered(operations: list[Node]) -> None:
    uncovered = [node for node in operations if kernel_kind(_target(node)) is None]
    if not uncovered:
        return
    lines = [f"{_name(node)} in module {module_path(node) or 'the model'}{_where(node)}" for node in uncovered]
    place = source_line(uncovered[0])
    raise CompileError(
        "no kernel covers: " + "; ".join(dict.fromkeys(lines)),
        file=place[0] if place else None,
        line=place[1] if place else None,
        advice="Write it with operations of fixed shape that do not depend on the data (torch.where, masks).",
    )


def _where(node: Node) -> str:
    place = source_line(node)
    return f" ({place[0]}:{place[1]})" if place else ""


def _groups(operations: list[Node]) -> Iterator[_Group]:
    """Runs of operations of one module; a heavy operation begins a kernel and takes the light ones with it."""
    for module, run in groupby(operations, key=module_path):
        group: _Group | None = None
        for node in run:
            kind = kernel_kind(_target(node))
            assert kind is not None
            if group is None or not _joins(group.kind, kind):
                if group is not None:
                    yield group
                group = _Group(kind, module)
            elif group.kind == KernelKind.LAYOUT:
                group.kind = kind
            group.nodes.append(node)
        if group is not None:
            yield group


def _joins(group: KernelKind, kind: KernelKind) -> bool:
    return kind in (KernelKind.LAYOUT, group) or group == KernelKind.LAYOUT


def _kernel(phase: Phase, group: _Group, parameters: dict[Node, str], names: dict[str, int]) -> Kernel:
    base = f"{phase}.{group.module or 'model'}.{group.kind}"
    names[base] = number = names.get(base, 0) + 1
    place = next((line for node in group.nodes if (line := source_line(node))), None)
    heavy = [node for node in group.nodes if kernel_kind(_target(node)) == group.kind]
    return Kernel(
        name=base if number == 1 else f"{base}.{number}",
        kind=group.kind,
        phase=phase,
        module=group.module,
        source=f"{place[0]}:{place[1]}" if place else None,
        operations=tuple(_name(node) for node in group.nodes if not node.meta.get("rounding")),
        multiply_adds=sum(multiply_adds(node) for node in heavy),
        elements=sum(_elements(node) for node in heavy),
        output_bytes=_value_bytes(heavy[-1].meta.get("val")) if heavy else 0,
        parameters=tuple(dict.fromkeys(parameters[n] for node in group.nodes for n in _read(node) if n in parameters)),
    )


def _read(node: Node) -> Iterator[Node]:
    """Inputs of a node, looking through layout operations and rounding (a transposed weight is a weight)."""
    for source in node.all_input_nodes:
        yield source
        if isinstance(source.target, OpOverload) and kernel_kind(source.target) == KernelKind.LAYOUT:
            yield from _read(source)


def _target(node: Node) -> OpOverload:
    assert isinstance(node.target, OpOverload)
    return node.target


def _name(node: Node) -> str:
    return _target(node)._schema.name.replace("::", ".")


def _elements(node: Node) -> int:
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        value = value[0]
    return math.prod(value.shape) if isinstance(value, torch.Tensor) else 0


def _value_bytes(value: object) -> int:
    if isinstance(value, (tuple, list)):
        return sum(_value_bytes(part) for part in value)
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
