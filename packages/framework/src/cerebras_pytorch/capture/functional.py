"""One module call as a functional ATen graph over flat tensors."""

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    AOTOutput,
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree

from cerebras_pytorch.capture.failed import refuse_labels, refuse_wrong_call
from cerebras_pytorch.capture.printed import held_output
from cerebras_pytorch.capture.refusals import cannot_capture, met_in_export, refuse_torchscript, watching
from cerebras_pytorch.memory import is_out_of_memory
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.compiler.passes.refuse import dynamic_shapes_of
from cerebras_wafer.errors import CompilerBug

NameInput = Callable[[int], str]


class Traced(NamedTuple):
    """A program, and how its outputs are nested in what the module returned."""

    program: Program
    output_tree: pytree.TreeSpec


def trace(module: nn.Module, arguments: tuple[Any, ...], name_input: NameInput) -> Traced:
    """Trace `module(*arguments)` under fake tensors: forward, and backward where gradients are on.

    `name_input` gives the role of a flat input by its number. Raises `CompileError` where the module's code
    cannot be captured.
    """
    refuse_torchscript(module)
    is_criterion = name_input(0).startswith("output:")
    refuse_wrong_call(module, arguments, is_criterion=is_criterion)
    if is_criterion:
        refuse_labels(module, *arguments)
    # oneDNN has an LSTM that is one operation; without it PyTorch traces what it consists of.
    with _quiet_pytorch(), torch.backends.mkldnn.flags(enabled=False), ExitStack() as stack:
        exported = _export(module, arguments, is_criterion=is_criterion)
        joint = aot_export_joint_with_descriptors(
            stack, exported.module(check_guards=False), _fake(arguments, exported), decompositions={}
        )
    graph_module = joint.graph_module
    assert isinstance(graph_module, torch.fx.GraphModule)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    inputs = tuple(_input_role(node.meta["desc"], name_input) for node in placeholders)
    output_node = graph_module.graph.output_node()
    outputs = tuple(_output_role(desc, name_input) for desc in output_node.meta["desc"])
    return Traced(_without_unnamed(graph_module, inputs, outputs), joint.out_spec)


def _export(module: nn.Module, arguments: tuple[Any, ...], *, is_criterion: bool) -> torch.export.ExportedProgram:
    with watching(module) as notes, held_output(lambda: bool(notes.faults)):
        try:
            exported = torch.export.export(module, arguments, strict=False)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            met = met_in_export(module, arguments, notes, error, is_criterion=is_criterion)
            raise cannot_capture(module, arguments, notes, met) from error
    dynamic = dynamic_shapes_of(exported.graph.nodes)
    if notes.faults or dynamic:
        raise cannot_capture(module, arguments, notes, dynamic)
    return exported


@contextmanager
def _quiet_pytorch() -> Iterator[None]:
    """Keep PyTorch's words about its own internals from the user's log: an error of ours says what they mean."""
    standard_error = io.StringIO()
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(standard_error):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
    sys.stderr.write(standard_error.getvalue())  # it succeeded: these are the user's own words


def _fake(arguments: tuple[Any, ...], exported: torch.export.ExportedProgram) -> Any:
    """The arguments under the fake mode of the export, in which a number read from a tensor stays a symbol."""
    values = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    mode = detect_fake_mode(values)
    if mode is None:
        raise CompilerBug("an export without fake tensors")
    return pytree.tree_map_only(torch.Tensor, lambda tensor: mode.from_tensor(tensor, static_shapes=True), arguments)


def _input_role(desc: AOTInput, name_input: NameInput) -> str:
    match desc:
        case ParamAOTInput():
            return f"parameter:{desc.target}"
        case BufferAOTInput():
            return f"buffer:{desc.target}"
        case PlainAOTInput():
            return name_input(desc.idx)
        case TangentAOTInput(output=PlainAOTOutput(idx=number)):
            return f"tangent:{number}"
    raise CompilerBug(f"no role for the input {desc!r}")


def _output_role(desc: AOTOutput | None, name_input: NameInput) -> str | None:
    match desc:
        case PlainAOTOutput():
            return f"output:{desc.idx}"
        case GradAOTOutput(grad_of=ParamAOTInput(target=name)):
            return f"gradient:{name}"
        case InputMutationAOTOutput(mutated_input=mutated):
            return _input_role(mutated, name_input)
        case None:
            return None
    raise CompilerBug(f"no role for the output {desc!r}")


def _without_unnamed(
    graph_module: torch.fx.GraphModule, inputs: tuple[str, ...], outputs: tuple[str | None, ...]
) -> Program:
    """Drop what the graph returns for inputs that have no gradient."""
    output_node = graph_module.graph.output_node()
    (returned,) = output_node.args
    assert isinstance(returned, (tuple, list))
    named = [
        (node, role) for node, role in zip(returned, outputs, strict=True) if role is not None and node is not None
    ]
    output_node.args = (tuple(node for node, _ in named),)
    output_node.meta.pop("desc", None)
    graph_module.recompile()
    return Program(graph_module, inputs, tuple(role for _, role in named))
