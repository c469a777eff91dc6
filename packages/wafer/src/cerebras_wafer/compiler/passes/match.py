"""Match: cover the captured graphs with kernels of the library, and note what reads what."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Node

from cerebras_contract.artifacts import ComputeFormat, ProgramName
from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.frontends.flat import output_nodes
from cerebras_wafer.compiler.frontends.places import module_path, operation_name, place_text
from cerebras_wafer.compiler.frontends.training_step import Program, WaferStep, dtype_name
from cerebras_wafer.compiler.ir.kernels import (
    HEAVY_KINDS,
    KERNEL,
    PARAMETER,
    Kernel,
    KernelGraph,
    KernelKind,
    Weight,
)
from cerebras_wafer.compiler.passes.operations import (
    VIEWS,
    base_name,
    covered_by,
    elements,
    extents,
    first_tensor,
    multiply_adds,
    shape_of,
)
from cerebras_wafer.errors import CompilerBug
from cerebras_wafer.hardware.work import WorkClass


def match(step: WaferStep, programs: Mapping[ProgramName, Program], compute_dtype: str) -> KernelGraph:
    """The kernel graph of a step, from its forward, loss and backward programs.

    Every operation must have passed `refuse`. The optimizer's update is one kernel: it runs beside the weights.
    """
    matched = _Matched(compute_dtype)
    kernels = [
        *_cover(Phase.FORWARD, programs[ProgramName.FORWARD], matched),
        *_cover(Phase.LOSS, programs[ProgramName.LOSS], matched),
        *_cover(Phase.BACKWARD, programs[ProgramName.BACKWARD], matched),
        _update(step),
    ]
    return KernelGraph(step.batch_size, compute_dtype, _weights(step), tuple(kernels))


class _Result(NamedTuple):
    """Where a value comes from, as a kernel's `reads` say it, and whether it grows with the batch."""

    origin: str | None
    grows: bool


@dataclass
class _Matched:
    """What is known while the programs are covered one after the other."""

    compute_dtype: str
    names: dict[str, int] = field(default_factory=dict)
    results: dict[str, _Result] = field(default_factory=dict)
    """Results that cross from one program to the next, by role (`saved:3`, `output:0`, `tangent:0`)."""

    def bytes_of(self, value: object) -> int:
        """Bytes on the wafer: floating-point values take the width of the compute type."""
        if isinstance(value, (tuple, list)):
            return sum(self.bytes_of(part) for part in value)
        if not isinstance(value, torch.Tensor):
            return 0
        half = ComputeFormat(self.compute_dtype).layout.size_bytes
        return value.numel() * (half if value.is_floating_point() else value.element_size())


@dataclass
class _Group:
    """Neighbouring operations of one module that one kernel covers."""

    kind: KernelKind
    module: str
    nodes: list[Node] = field(default_factory=list)


def _cover(phase: Phase, program: Program, matched: _Matched) -> list[Kernel]:
    """Kernels that cover a program, in its order."""
    graph = program.graph_module.graph
    results = _results_of_inputs(phase, program, matched)
    returned = dict(zip(program.outputs, output_nodes(program.graph_module), strict=True))
    saved = {_base(node) for role, node in returned.items() if role.startswith("saved:") and node}
    kernels = []
    operations = [node for node in graph.nodes if isinstance(node.target, OpOverload) and node not in results]
    for group in _groups(phase, operations):
        kernel = _kernel(phase, group, results, matched, saved)
        grows = kernel.grows_with_batch
        results |= {node: _Result(KERNEL + kernel.name, grows) for node in _with_parts(group.nodes)}
        kernels.append(kernel)
    if not kernels:
        raise CompilerBug(f"the program of phase {phase} has no operation")
    _keep_results(phase, returned, results, matched, KERNEL + kernels[-1].name)
    return kernels


def _results_of_inputs(phase: Phase, program: Program, matched: _Matched) -> dict[Node, _Result]:
    """Where inputs come from. An input rounded as it comes in is that input still: a tied weight is a weight.

    A parameter of the criterion is a constant of the loss: it has no gradient, and names of its own.
    """
    nodes = program.graph_module.graph.nodes
    placeholders = [node for node in nodes if node.op == "placeholder"]
    results = {
        node: _Result(None, grows=False)
        if phase == Phase.LOSS and role.startswith(PARAMETER)
        else matched.results.get(role) or _Result(role, grows=role.startswith(("input:", "target:", "tangent:")))
        for node, role in zip(placeholders, program.inputs, strict=True)
    }
    for node in nodes:
        if node.op == "call_function" and node.meta.get("rounding") and node.all_input_nodes[0] in results:
            results[node] = results[node.all_input_nodes[0]]
    return results


def _keep_results(
    phase: Phase, returned: Mapping[str, Node | None], results: dict[Node, _Result], matched: _Matched, last: str
) -> None:
    """Note what later programs read; the loss's own gradient comes from its last kernel."""
    for role, node in returned.items():
        if node is not None:
            matched.results[role] = results.get(_base(node)) or results.get(node) or _Result(None, grows=False)
            if phase == Phase.FORWARD and role.startswith("output:"):
                matched.results[role.replace("output:", "tangent:")] = matched.results[role]
    if phase == Phase.LOSS:
        tangents = [role for role in matched.results if role.startswith("tangent:")]
        matched.results |= {role: _Result(last, grows=True) for role in tangents}


def _groups(phase: Phase, operations: list[Node]) -> Iterator[_Group]:
    """Runs of operations of one module; a heavy operation begins a kernel and takes the light ones with it."""
    for module, run in groupby(operations, key=module_path):
        group: _Group | None = None
        for node in run:
            kind = _kind(node)
            if group is None or not _joins(phase, group.kind, kind):
                if group is not None:
                    yield group
                group = _Group(kind, module)
            elif group.kind == KernelKind.LAYOUT:
                group.kind = kind
            group.nodes.append(node)
        if group is not None:
            yield group


def _joins(phase: Phase, group: KernelKind, kind: KernelKind) -> bool:
    """In backward the gradients of an operation's input and weight are one kernel."""
    if KernelKind.LAYOUT in (group, kind):
        return True
    return group == kind and (kind not in HEAVY_KINDS or phase == Phase.BACKWARD)


def _kernel(
    phase: Phase, group: _Group, results: Mapping[Node, _Result], matched: _Matched, saved: set[Node]
) -> Kernel:
    heavy = [node for node in group.nodes if _kind(node) == group.kind and not node.meta.get("rounding")]
    last = (heavy or group.nodes)[-1]
    inside = set(group.nodes)
    sources = [source for node in group.nodes for source in _sources(node) if source not in inside]
    reads = dict.fromkeys(result.origin for source in sources if (result := results.get(source)) and result.origin)
    handed_on = {_base(value) for value in _values_read_outside(group.nodes)}
    return Kernel(
        name=_name(phase, group, matched.names),
        kind=group.kind,
        phase=phase,
        module=group.module,
        source=next((place for node in group.nodes if (place := place_text(node))), None),
        operations=tuple(operation_name(node.target) for node in group.nodes if not node.meta.get("rounding")),
        reads=tuple(read for read in reads if read is not None),
        shape=shape_of(last),
        dtype=_dtype(last),
        extents=extents(heavy[0]) if heavy and phase == Phase.FORWARD and group.kind in HEAVY_KINDS else (),
        multiply_adds=sum(multiply_adds(node) for node in heavy),
        element_work=_element_work(heavy),
        output_bytes=sum(matched.bytes_of(value.meta.get("val")) for value in handed_on),
        saved_bytes=sum(matched.bytes_of(node.meta.get("val")) for node in _with_parts(group.nodes) if node in saved),
        grows_with_batch=any(results[source].grows for source in sources if source in results),
    )


def _name(phase: Phase, group: _Group, names: dict[str, int]) -> str:
    base = f"{phase}.{group.module or 'model'}.{group.kind}"
    names[base] = number = names.get(base, 0) + 1
    return base if number == 1 else f"{base}.{number}"


def _element_work(heavy: list[Node]) -> tuple[tuple[WorkClass, int], ...]:
    work: dict[WorkClass, int] = {}
    for node in heavy:
        assert isinstance(node.target, OpOverload)
        cover = covered_by(node.target)
        if cover and cover.work:
            work[cover.work] = work.get(cover.work, 0) + elements(node)
    return tuple(work.items())


def _update(step: WaferStep) -> Kernel:
    """The optimizer's update as one kernel, beside the weights: an element of work a trained element."""
    return Kernel(
        name=f"update.{step.optimizer.name}",
        kind=KernelKind.UPDATE,
        phase=Phase.UPDATE,
        module="optimizer",
        source=None,
        operations=(),
        reads=tuple(PARAMETER + name for name in step.trained),
        shape=(),
        dtype="float32",
        extents=(),
        multiply_adds=0,
        element_work=((WorkClass.ELEMENTWISE, sum(_sizes(step)[name] for name in step.trained)),),
        output_bytes=0,
        saved_bytes=0,
        grows_with_batch=False,
    )


def _weights(step: WaferStep) -> tuple[Weight, ...]:
    """The parameters that the step reads."""
    trained, read = set(step.trained), set(step.joint.inputs)
    return tuple(
        Weight(
            spec.name,
            tuple(spec.shape),
            spec.name in trained,
            step.state_elements.get(spec.name, 0),
            tied_to=step.tied.get(spec.name),
        )
        for spec in step.parameters
        if PARAMETER + spec.name in read
    )


def _sizes(step: WaferStep) -> dict[str, int]:
    return {spec.name: math.prod(spec.shape) for spec in step.parameters}


def _sources(node: Node) -> Iterator[Node]:
    """Inputs of a node, past the picking of one result of several."""
    for source in node.all_input_nodes:
        yield source if source.op != "call_function" or isinstance(source.target, OpOverload) else _owner(source)


def _owner(node: Node) -> Node:
    """The operation that a picked result (`getitem`) belongs to."""
    while node.op == "call_function" and not isinstance(node.target, OpOverload):
        node = node.all_input_nodes[0]
    return node


def _with_parts(nodes: list[Node]) -> Iterator[Node]:
    """Nodes, and the picks of one of their results."""
    for node in nodes:
        yield node
        yield from (user for user in node.users if user.op == "call_function" and not _is_operation(user))


def _base(node: Node) -> Node:
    """What a value is a view of: both share their memory."""
    while isinstance(node.target, OpOverload) and base_name(node.target) in VIEWS:
        node = node.all_input_nodes[0]
    return node


def _values_read_outside(nodes: list[Node]) -> Iterator[Node]:
    """Results that kernels of the same program read, of an operation with several each by itself."""
    inside = set(_with_parts(nodes))
    for node in nodes:
        parts = [user for user in node.users if user in inside and not _is_operation(user)]
        for value in parts or [node]:
            if any(user not in inside and user.op != "output" for user in value.users):
                yield value


def _is_operation(node: Node) -> bool:
    return isinstance(node.target, OpOverload)


def _kind(node: Node) -> KernelKind:
    assert isinstance(node.target, OpOverload)
    cover = covered_by(node.target)
    if cover is None:
        raise CompilerBug(f"{node.target} passed the check of what is covered, and nothing covers it")
    return cover.kind


def _dtype(node: Node) -> str:
    tensor = first_tensor(node)
    return "none" if tensor is None else dtype_name(tensor.dtype)
