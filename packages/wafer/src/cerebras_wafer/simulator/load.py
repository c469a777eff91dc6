"""Load an artifact and check it."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch._inductor
from pydantic import ValidationError
from torch.fx import GraphModule
from torch.fx.graph import _BoxedCodeGen

from cerebras_contract.artifacts import (
    MANIFEST_FILE,
    PLAN_FILE,
    SCHEMA_VERSION,
    Manifest,
    ProgramName,
)
from cerebras_contract.digests import sha256_of_file
from cerebras_contract.plans import Plan
from cerebras_wafer.errors import ArtifactMismatch
from cerebras_wafer.simulator import rounding as rounding  # defines the operation that programs round with
from cerebras_wafer.simulator.generated import Running, with_code
from cerebras_wafer.versions import this_machine, torch_version


@dataclass(frozen=True)
class Artifact:
    """A loaded artifact. Each program takes a list of tensors, which it empties, and returns a flat tuple."""

    manifest: Manifest
    plan: Plan
    programs: dict[ProgramName, GraphModule]
    updates: list[GraphModule]
    """In the order of the manifest's."""
    running: dict[ProgramName, GraphModule]
    """The programs as they run: with the code that was generated for their operations, where there is any."""
    update_code: list[Running | None]
    """The code of the elementwise updates, which changes what it is given in place."""


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the artifact in `folder`, or None where there is none that this version can read."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return manifest if manifest.schema_version == SCHEMA_VERSION else None


def is_complete(folder: Path, manifest: Manifest) -> bool:
    """Whether every file of the artifact is there with the digest that its manifest names."""
    files = {name: folder / name for name in manifest.digests}
    return all(path.is_file() and sha256_of_file(path) == manifest.digests[name] for name, path in files.items())


def load_artifact(folder: Path) -> Artifact:
    """Load all programs. Raises `ArtifactMismatch` where the artifact is missing, damaged or of another torch."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ArtifactMismatch(f"there is no readable artifact in {folder}", "Compile again.")
    if not is_complete(folder, manifest):
        raise ArtifactMismatch(f"the artifact in {folder} is damaged: a file is missing or differs", "Compile again.")
    running = torch_version()
    if manifest.versions.torch != running:
        raise ArtifactMismatch(
            f"the artifact was compiled with torch {manifest.versions.torch}, this is torch {running}",
            "Compile and run with the same environment, or compile again.",
        )
    is_inductor = manifest.codegen == "inductor"
    there, here = (f"{one.instruction_set} of {one.processor}" for one in (manifest.made_on, this_machine()))
    if is_inductor and there != here:
        raise ArtifactMismatch(
            f"the artifact holds code for {there}, and this processor is {here}",
            "Compile where the same instructions are known, or with codegen: interpret, which runs anywhere.",
        )
    programs = {name: _load_program(folder / spec.file) for name, spec in manifest.programs.items()}
    code = {
        file: _load_code(folder / file)
        for file in sorted({one.file for spec in manifest.programs.values() for one in spec.code})
    }
    return Artifact(
        manifest=manifest,
        plan=Plan.model_validate_json((folder / PLAN_FILE).read_bytes()),
        programs=programs,
        updates=[_load_program(folder / spec.file) for spec in manifest.updates],
        running={name: with_code(programs[name], spec.code, code) for name, spec in manifest.programs.items()},
        update_code=[_load_code(folder / spec.code.file) if spec.code else None for spec in manifest.updates],
    )


def _load_code(path: Path) -> Running:
    """Generated code as a program is: it takes its tensors in one list, which it empties."""
    running: Running = torch._inductor.aoti_load_package(str(path)).loader.boxed_run
    return running


def _load_program(path: Path) -> GraphModule:
    """A program as plain generated Python, without the checks and trees around an export.

    It takes its tensors in one list, which it empties: each can be freed after its last use.
    """
    module = torch.export.load(path).module(check_guards=False)
    assert isinstance(module, GraphModule)
    module.graph.set_codegen(_BoxedCodeGen())
    return GraphModule(module, module.graph)  # without the hooks of an export, which look at every input
