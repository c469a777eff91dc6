"""`cerebras-wafer`: look at a compiled artifact, plan it for other systems and batches, profile its steps."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from cerebras_contract.artifacts import KERNELS_FILE, PLAN_FILE, Manifest
from cerebras_contract.digests import sha256_of_file
from cerebras_contract.errors import ReportedError
from cerebras_contract.planning import PassName
from cerebras_contract.plans import Phase, Plan
from cerebras_contract.systems import system_names
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph
from cerebras_wafer.compiler.ir.text import parse_graph, print_graph
from cerebras_wafer.errors import ArtifactMismatch
from cerebras_wafer.planner.compare import compare
from cerebras_wafer.planner.options import add_options, choices_of
from cerebras_wafer.planner.table import as_json, as_text
from cerebras_wafer.simulator.load import read_manifest
from cerebras_wafer.simulator.profile import chrome_trace

INTERRUPTED = 130
SAVED_GRAPH = PassName.FUSE  # the pass after which the kernel graph is saved
Command = Callable[[argparse.Namespace], None]


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status. No error leaves it as a traceback."""
    arguments = _parser().parse_args(words)
    command: Command = arguments.command
    try:
        command(arguments)
    except ReportedError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cerebras-wafer", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="plan it for other systems and batches", allow_abbrev=False)
    show = commands.add_parser("show", help="print its kernel graph", allow_abbrev=False)
    profile = commands.add_parser("profile", help="write a trace of training steps", allow_abbrev=False)
    for command, function in ((plan, _plan), (show, _show), (profile, _profile)):
        command.add_argument("artifact", type=Path, help="the artifact's folder, such as compile/")
        command.set_defaults(command=function)
    add_options(plan)
    show.add_argument("--summary", action="store_true", help="print what there is of each kind of kernel only")
    profile.add_argument("--steps", type=_steps, default=(1, 1), metavar="FIRST:LAST", help="[default: 1:1]")
    profile.add_argument("--output", type=Path, default=Path("trace.json"), help="[default: trace.json]")
    return parser


def _steps(text: str) -> tuple[int, int]:
    """`3:5` as the first and the last step."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"expected FIRST:LAST, as in 3:5, not {text!r}")
    return int(first), int(last)


def _profile(arguments: argparse.Namespace) -> None:
    """Device time as Chrome and Perfetto open it."""
    path = arguments.artifact / PLAN_FILE
    try:
        plan = Plan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise ArtifactMismatch(f"there is no readable plan at {path}", "Name the artifact's folder.") from None
    try:
        arguments.output.write_text(json.dumps(chrome_trace(plan, *arguments.steps)), encoding="utf-8")
    except OSError as error:
        raise ArtifactMismatch(f"cannot write {arguments.output}: {error.strerror}") from None
    _say(f"Wrote {arguments.output}: open it at https://ui.perfetto.dev or in Chrome's about:tracing")


def _plan(arguments: argparse.Namespace) -> None:
    manifest, graph = _read(arguments.artifact)
    choices = choices_of(arguments)
    if choices.print_after not in (None, SAVED_GRAPH, PassName.PLAN):
        raise ArtifactMismatch(
            f"an artifact does not hold what pass {choices.print_after} left",
            f"Choose {SAVED_GRAPH} or {PassName.PLAN}, or plan the script.",
        )
    if choices.print_after == SAVED_GRAPH:
        _say(print_graph(graph), sys.stderr if choices.json else sys.stdout)
    if manifest.system not in system_names() and choices.systems is None:
        raise ArtifactMismatch(
            f"the artifact was compiled for {manifest.system}, a system of someone's own",
            "Name its file, or another system, with --system.",
        )
    options = CompileOptions(manifest.system, manifest.num_csx, manifest.precision)
    stream = sys.stderr if choices.json else sys.stdout
    combinations = compare(graph, options, choices, None, lambda text: _say(text, stream))
    _say(as_json(combinations) if choices.json else as_text(combinations))


def _show(arguments: argparse.Namespace) -> None:
    manifest, graph = _read(arguments.artifact)
    _say(_summary(manifest, graph) if arguments.summary else print_graph(graph).rstrip("\n"))


def _read(folder: Path) -> tuple[Manifest, KernelGraph]:
    """Manifest and kernel graph of an artifact. Its programs are left alone, so any torch will do."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ArtifactMismatch(
            f"there is no readable artifact in {folder}", "Name the folder that holds manifest.json."
        )
    path = folder / KERNELS_FILE
    if not path.is_file() or sha256_of_file(path) != manifest.digests.get(KERNELS_FILE):
        raise ArtifactMismatch(f"{path} is missing or damaged", "Compile again.")
    return manifest, parse_graph(path.read_text(encoding="utf-8"))


def _summary(manifest: Manifest, graph: KernelGraph) -> str:
    parameters = sum(prod(weight.shape) for weight in graph.own_weights)
    lines = [
        f"{manifest.artifact_key}: batch {graph.batch_size}, {graph.compute_dtype}, compiled for {manifest.num_csx} x"
        f" {manifest.system}",
        f"{len(graph.own_weights)} weights, {parameters:,} parameters; {graph.saved_bytes:,} bytes kept for backward",
    ]
    for phase in Phase:
        kernels = graph.of(phase)
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(kernel.kind for kernel in kernels).most_common())
        multiply_adds = sum(kernel.multiply_adds for kernel in kernels)
        lines.append(f"{phase:<9}{len(kernels):>6} kernels, {multiply_adds:,} multiply-adds: {kinds}")
    return "\n".join(lines)


def _say(text: str, stream: TextIO | None = None) -> None:
    print(text, file=stream)
