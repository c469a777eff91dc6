"""Refuse: say every operation that no kernel of the library covers, with its place."""

from collections.abc import Mapping

from torch._ops import OpOverload
from torch.fx import Node

from cerebras_contract.artifacts import ProgramName
from cerebras_wafer.compiler.frontends.places import module_path, place_text, source_line
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.compiler.passes.operations import covered_by
from cerebras_wafer.errors import CompileError


def refuse(programs: Mapping[ProgramName, Program]) -> None:
    """Raise `CompileError` naming every operation that no kernel covers, with its module and source line."""
    nodes = [node for program in programs.values() for node in program.graph_module.graph.nodes]
    uncovered = [node for node in nodes if isinstance(node.target, OpOverload) and covered_by(node.target) is None]
    if not uncovered:
        return
    place = source_line(uncovered[0])
    raise CompileError(
        "no kernel covers: " + "; ".join(dict.fromkeys(_description(node) for node in uncovered)),
        file=place[0] if place else None,
        line=place[1] if place else None,
        advice="Write it with operations of fixed shape that do not depend on the data (torch.where, masks).",
    )


def _description(node: Node) -> str:
    assert isinstance(node.target, OpOverload)
    name = node.target._schema.name.replace("::", ".")
    place = place_text(node)
    return f"{name} in module {module_path(node) or 'the model'}" + (f" ({place})" if place else "")
