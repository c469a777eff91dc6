"""Generate code: `codegen: inductor` makes machine code for the segments of programs, by PyTorch's own compiler.

The run worker loads them and needs no compiler. Random operations still draw from PyTorch's generator, in the order of
the program, so that a run is reproduced whatever runs the program. The programs stay in the artifact: where a batch
fails, they say at which line.
"""

import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from cerebras_contract.artifacts import CodeSpec, ProgramName, TensorSpec, UpdateCodeSpec, code_file_name
from cerebras_contract.errors import ErrorCode
from cerebras_contract.plans import Mode, Plan
from cerebras_wafer.compiler.frontends.flat import export_flat, placeholder_values
from cerebras_wafer.compiler.frontends.training_step import Program, Update
from cerebras_wafer.compiler.passes.check_indices import with_checked_indices
from cerebras_wafer.compiler.segments import segments_of
from cerebras_wafer.errors import CompileError
from cerebras_wafer.simulator.store import aligned_elements
from cerebras_wafer.simulator.update import CHUNK_ELEMENTS

# Random operations are PyTorch's own; code takes as many threads as there are where it runs; what calls the kernels is
# compiled as it is, which halves the time.
SETTINGS = {
    "fallback_random": True,
    "cpp.dynamic_threads": True,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}


Work = tuple[str, ExportedProgram]
"""What the log calls it, and what code is generated for."""


@dataclass(frozen=True)
class GeneratedCode:
    """Which code runs in place of which operations, and of which updates."""

    programs: Mapping[ProgramName, list[CodeSpec]] = field(default_factory=dict)
    updates: Mapping[int, UpdateCodeSpec] = field(default_factory=dict)


def generate_code(
    programs: Mapping[ProgramName, Program],
    updates: Sequence[Update],
    parameters: Mapping[str, TensorSpec],
    plan: Plan,
    folder: Path,
    log: Callable[[str], None],
) -> GeneratedCode:
    """Write code for all that a step or an evaluation runs, but for the loss and for updates that are not elementwise.

    Raises `CompileError` where there is no C++ compiler, or PyTorch cannot generate code.
    """
    refuse_without_compiler()
    of_programs, work = _of_programs(programs, plan)
    of_updates, more = _of_updates(updates, parameters, plan, code_files=len(work))
    work |= more
    for number, (file, (what, program)) in enumerate(work.items(), start=1):
        log(f"Generating code for {what} ({number} of {len(work)})")
        _generate(program, folder / file, what)
    return GeneratedCode(of_programs, of_updates)


def _of_programs(
    programs: Mapping[ProgramName, Program], plan: Plan
) -> tuple[dict[ProgramName, list[CodeSpec]], dict[str, Work]]:
    """The code of each program, and by its file what is to be generated."""
    files: dict[str, str] = {}  # by the digest of a segment
    work: dict[str, Work] = {}
    code: dict[ProgramName, list[CodeSpec]] = {}
    for name, segments in segments_of(programs, plan).items():
        for segment in segments:
            file = files.setdefault(segment.digest, code_file_name(len(files)))
            if file not in work:
                work[file] = name, export_flat(with_checked_indices(segment.graph_module) or segment.graph_module)
            code.setdefault(name, []).append(CodeSpec(file=file, first=segment.first, end=segment.end))
    return code, work


def _of_updates(
    updates: Sequence[Update], parameters: Mapping[str, TensorSpec], plan: Plan, code_files: int
) -> tuple[dict[int, UpdateCodeSpec], dict[str, Work]]:
    """The code of the elementwise updates, by their number, and by its file what is to be generated."""
    code: dict[int, UpdateCodeSpec] = {}
    work: dict[str, Work] = {}
    for number, update in enumerate(updates):
        if update.elementwise and not _reads_a_number(update):
            elements = sum(aligned_elements(math.prod(parameters[name].shape)) for name in update.calls[0])
            if plan.mode == Mode.WEIGHT_STREAMING:  # a piece at a time
                elements = min(elements, CHUNK_ELEMENTS)
            code[number] = UpdateCodeSpec(file=code_file_name(code_files + len(work)), elements=elements)
            in_place_of = [update.program.inputs.index(role) for role in update.program.outputs]
            work[code[number].file] = "update", export_flat(_of_size(update.program, elements), in_place_of)
    return code, work


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
        with warnings.catch_warnings(), _same_each_time():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=SETTINGS)
    except Exception as error:
        last_line = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise CompileError(
            f"PyTorch could not generate code for the {name} program: {last_line[0]}",
            code=ErrorCode.COMPILE_UNSUPPORTED,
            advice="Set codegen: interpret, which runs the same program.",
        ) from error


@contextmanager
def _same_each_time() -> Iterator[None]:
    """Generate no code in which threads add to the same element in any order, as that of an embedding's gradient."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
