"""Emit: write an artifact to a folder, complete or not at all."""

import shutil
import time
from pathlib import Path

import torch
from pydantic import JsonValue

from cerebras_contract.artifacts import (
    KERNELS_FILE,
    MANIFEST_FILE,
    PLAN_FILE,
    REPORT_JSON_FILE,
    REPORT_PAGE_FILE,
    REPORT_TEXT_FILE,
    Manifest,
    ProgramSpec,
    UpdateSpec,
    update_file_name,
)
from cerebras_contract.digests import sha256_of_file
from cerebras_wafer.compiler.codegen import GeneratedCode, generate_code
from cerebras_wafer.compiler.frontends.flat import export_flat
from cerebras_wafer.compiler.frontends.training_step import Program
from cerebras_wafer.compiler.ir.text import print_graph
from cerebras_wafer.compiler.pipeline import Compiled, Log
from cerebras_wafer.compiler.report.page import report_page
from cerebras_wafer.compiler.report.text import report_text
from cerebras_wafer.errors import CompileError
from cerebras_wafer.versions import this_machine


def write_artifact(
    compiled: Compiled,
    folder: Path,
    input_key: str,
    ingredients: dict[str, JsonValue],
    log: Log = lambda _: None,
) -> Manifest:
    """Write every file of the artifact, the manifest last, then put the folder in place of an older artifact.

    Raises `CompileError` where the place is taken by something that is no artifact.
    """
    if folder.exists() and not (folder / MANIFEST_FILE).is_file() and any(folder.iterdir()):
        raise CompileError(
            f"{folder} exists and is not an artifact, so it is not replaced",
            advice="Move it away, or run the script in another folder: the artifact is written to ./compile.",
        )
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_contents(compiled, partial)
        code = GeneratedCode()
        if compiled.options.codegen == "inductor":
            parameters = {spec.name: spec for spec in compiled.step.parameters}
            code = generate_code(compiled.programs, compiled.step.updates, parameters, compiled.plan, partial, log)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    manifest = _manifest(compiled, code, partial, input_key, ingredients)
    (partial / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return manifest


def _write_contents(compiled: Compiled, folder: Path) -> None:
    for name, program in compiled.programs.items():
        _save(program, folder / name.file_name)
    for number, update in enumerate(compiled.step.updates):
        _save(update.program, folder / update_file_name(number))
    (folder / PLAN_FILE).write_text(compiled.plan.model_dump_json(indent=2), encoding="utf-8")
    (folder / KERNELS_FILE).write_text(print_graph(compiled.graph), encoding="utf-8")
    (folder / REPORT_JSON_FILE).write_text(compiled.report.model_dump_json(indent=2), encoding="utf-8")
    (folder / REPORT_TEXT_FILE).write_text(report_text(compiled.report), encoding="utf-8")
    (folder / REPORT_PAGE_FILE).write_text(report_page(compiled.plan, compiled.report), encoding="utf-8")


def _save(program: Program, path: Path) -> None:
    torch.export.save(export_flat(program.graph_module), path)


def _manifest(
    compiled: Compiled, code: GeneratedCode, folder: Path, input_key: str, ingredients: dict[str, JsonValue]
) -> Manifest:
    step, options = compiled.step, compiled.options
    return Manifest(
        artifact_key=compiled.key,
        input_key=input_key,
        created_at=time.time(),
        system=compiled.plan.system,
        num_csx=options.num_csx,
        batch_size=step.batch_size,
        precision=options.precision,
        versions=compiled.versions,
        codegen=options.codegen,
        made_on=this_machine(),
        ingredients=ingredients,
        parameters=list(step.parameters),
        trained=list(step.trained),
        in_eval_mode=list(step.in_eval_mode),
        buffers=list(step.buffers),
        inputs=list(step.inputs),
        targets=list(step.targets),
        outputs=list(step.outputs),
        output_tree=step.output_tree,
        optimizer=step.optimizer,
        programs={
            name: ProgramSpec(
                file=name.file_name,
                inputs=list(program.inputs),
                outputs=list(program.outputs),
                code=code.programs.get(name, []),
            )
            for name, program in compiled.programs.items()
        },
        updates=[
            UpdateSpec(
                file=update_file_name(number),
                inputs=list(update.program.inputs),
                outputs=list(update.program.outputs),
                calls=[list(names) for names in update.calls],
                elementwise=update.elementwise,
                code=code.updates.get(number),
            )
            for number, update in enumerate(step.updates)
        ],
        digests={path.name: sha256_of_file(path) for path in sorted(folder.iterdir())},
    )
