"""Generate code: `codegen: inductor` makes packages of machine code beside the programs, by PyTorch's own compiler.

The run worker loads them and needs no compiler. Random operations still draw from PyTorch's generator, in the order of
the program, so that a run is reproduced whatever runs the program. The programs stay in the artifact: where a batch
fails, they say at which line.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from cerebras_contract.artifacts import GENERATED, ProgramName, package_file_name
from cerebras_contract.errors import ErrorCode
from cerebras_wafer.compiler.frontends.flat import export_flat, placeholder_values
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.errors import CompileError

# Random operations are PyTorch's own; the code that calls the kernels is compiled as it is, which halves the time.
SETTINGS = {"fallback_random": True, "aot_inductor.compile_wrapper_opt_level": "O0"}


def generate_code(programs: Mapping[ProgramName, Program], folder: Path, log: Callable[[str], None]) -> None:
    """Write a package for each program that a step or an evaluation runs.

    Raises `CompileError` where there is no C++ compiler, or PyTorch cannot generate code for a program.
    """
    refuse_without_compiler()
    for number, name in enumerate(GENERATED, start=1):
        log(f"Generating code for {name} ({number} of {len(GENERATED)})")
        _generate(programs[name], folder / package_file_name(name), name)


def refuse_without_compiler() -> None:
    """Raise `CompileError` where nothing can compile C++."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise CompileError(
            f"codegen: inductor needs a C++ compiler where the artifact is made, and there is no {compiler}",
            code=ErrorCode.COMPILE_UNSUPPORTED,
            advice="Install g++ there, or set codegen: interpret, which needs none.",
        )


def _generate(program: Program, path: Path, name: ProgramName) -> None:
    exported = export_flat(program.graph_module)
    values = placeholder_values(program.graph_module)
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
