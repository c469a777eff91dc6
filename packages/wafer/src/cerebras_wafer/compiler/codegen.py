"""Generate code: `codegen: inductor` makes packages of machine code beside the programs, by PyTorch's own compiler.

The run worker loads them and needs no compiler. Random operations still draw from PyTorch's generator, in the order of
the program, so that a run is reproduced whatever runs the program. The programs stay in the artifact: where a batch
fails, they say at which line.
"""

import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from cerebras_contract.artifacts import (
    GENERATED,
    ProgramName,
    TensorSpec,
    package_file_name,
    update_package_file_name,
)
from cerebras_contract.errors import ErrorCode
from cerebras_wafer.compiler.frontends.flat import export_flat, placeholder_values
from cerebras_wafer.compiler.frontends.training_step import Program, Update
from cerebras_wafer.errors import CompileError
from cerebras_wafer.simulator.store import aligned_elements

# Random operations are PyTorch's own; the code that calls the kernels is compiled as it is, which halves the time.
SETTINGS = {"fallback_random": True, "aot_inductor.compile_wrapper_opt_level": "O0"}


def generate_code(
    programs: Mapping[ProgramName, Program],
    updates: Sequence[Update],
    parameters: Mapping[str, TensorSpec],
    folder: Path,
    log: Callable[[str], None],
) -> None:
    """Write a package for each program that a step or an evaluation runs, and for each elementwise update.

    Raises `CompileError` where there is no C++ compiler, or PyTorch cannot generate code for a program.
    """
    refuse_without_compiler()
    exported = {package_file_name(name): (str(name), export_flat(programs[name].graph_module)) for name in GENERATED}
    for number, update in enumerate(updates):
        if update.elementwise and not _reads_a_number(update):
            sizes = [math.prod(parameters[name].shape) for name in update.calls[0]]
            graph = _of_size(update.program, sum(map(aligned_elements, sizes)))
            in_place_of = [update.program.inputs.index(role) for role in update.program.outputs]
            exported[update_package_file_name(number)] = "update", export_flat(graph, in_place_of)
    for number, (file, (name, program)) in enumerate(exported.items(), start=1):
        log(f"Generating code for {name} ({number} of {len(exported)})")
        _generate(program, folder / file, name)


def _reads_a_number(update: Update) -> bool:
    """Whether an operation takes the learning rate as a number, as SGD's does: then it is few, and stays a program."""
    nodes = update.program.graph_module.graph.nodes
    return any(node.target == torch.ops.aten._local_scalar_dense.default for node in nodes)


def _of_size(update: Program, elements: int) -> GraphModule:
    """An elementwise update of so many elements."""
    traced = update.graph_module
    module = GraphModule(traced, Graph())
    module.graph.output(module.graph.graph_copy(traced.graph, {}))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        sizes = [(elements,) if value.dim() else () for value in placeholder_values(traced)]
        examples = [torch.empty(s, dtype=v.dtype) for s, v in zip(sizes, placeholder_values(traced), strict=True)]
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*examples)
    return module


def refuse_without_compiler() -> None:
    """Raise `CompileError` where nothing can compile C++."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise CompileError(
            f"codegen: inductor needs a C++ compiler where the artifact is made, and there is no {compiler}",
            code=ErrorCode.COMPILE_UNSUPPORTED,
            advice="Install g++ there, or set codegen: interpret, which needs none.",
        )


def _generate(exported: ExportedProgram, path: Path, name: str) -> None:
    values = placeholder_values(exported.graph_module)[-len(exported.graph_signature.user_inputs) :]
    examples = tuple(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_() for value in values)
    exported.example_inputs = examples, {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=SETTINGS)
    except Exception as error:
        last_line = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise CompileError(
            f"PyTorch could not generate code for the {name} program: {last_line[0]}",
            code=ErrorCode.COMPILE_UNSUPPORTED,
            advice="Set codegen: interpret, which runs the same program.",
        ) from error
