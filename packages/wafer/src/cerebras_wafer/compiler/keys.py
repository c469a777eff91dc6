"""The artifact key: the same model and options give the same key on every machine and in every process."""

import hashlib
from collections.abc import Mapping, Sequence
from operator import attrgetter

import torch
from torch.fx import GraphModule, Node

from cerebras_contract.artifacts import ProgramName, Versions
from cerebras_contract.digests import sha256_of_json
from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.frontends.training_step import CompileOptions, Program, Update
from cerebras_wafer.versions import instruction_set

KEY_PREFIX = "cs_"


def artifact_key(
    programs: Mapping[ProgramName, Program],
    updates: Sequence[Update],
    options: CompileOptions,
    system: SystemSpec,
    versions: Versions,
) -> str:
    """`cs_` and the first 32 hexadecimal digits of a digest over programs, options, spec and versions."""
    content = {
        "programs": {name: canonical_program(program) for name, program in programs.items()},
        "updates": [[canonical_program(update.program), update.calls, update.elementwise] for update in updates],
        "precision": options.precision.model_dump(mode="json"),
        "num_csx": options.num_csx,
        "execution_mode": options.execution_mode,
        "micro_batch": options.micro_batch,
        "code": instruction_set() if options.codegen == "inductor" else options.codegen,
        "system": system.model_dump(mode="json"),
        "versions": versions.model_dump(mode="json"),
    }
    return KEY_PREFIX + sha256_of_json(content)[:32]


def canonical_program(program: Program) -> list[str]:
    """A program as lines of text, without names that differ between processes, paths or metadata."""
    lines = [f"inputs {' '.join(program.inputs)}", f"outputs {' '.join(program.outputs)}"]
    return lines + canonical_graph(program.graph_module)


def canonical_graph(graph_module: GraphModule) -> list[str]:
    nodes = graph_module.graph.nodes
    numbers = {node: number for number, node in enumerate(nodes)}

    def text(value: object) -> str:
        if isinstance(value, Node):
            return f"%{numbers[value]}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(text(part) for part in value)}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key}: {text(part)}' for key, part in value.items())}}}"
        return repr(value)

    return [
        f"%{numbers[node]} {node.op} {_target(node, graph_module)} {text(node.args)} {text(node.kwargs)} {_type(node)}"
        for node in nodes
    ]


def _target(node: Node, graph_module: GraphModule) -> str:
    if node.op == "placeholder":
        return ""
    if node.op == "get_attr":  # a constant of the program: its value counts, not its name
        return _digest_of_constant(attrgetter(str(node.target))(graph_module))
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _digest_of_constant(value: torch.Tensor) -> str:
    content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(content).hexdigest()


def _type(node: Node) -> str:
    value = node.meta.get("val")
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else ""
