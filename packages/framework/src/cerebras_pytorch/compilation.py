"""`compile`: capture the training step, compile it once, and train from the artifact."""

import time
from typing import Any

import torch
from pydantic import JsonValue
from torch import nn
from torch.optim import Optimizer

from cerebras_contract.artifacts import REPORT_PAGE_FILE, REPORT_TEXT_FILE
from cerebras_contract.digests import sha256_of_json
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.events import ArtifactEvent, WarningEvent
from cerebras_contract.states import StageKind
from cerebras_pytorch.amp import MixedPrecision
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.stacks import located
from cerebras_pytorch.capture.step import capture_step, capture_wafer_step
from cerebras_pytorch.context import Context, active_context
from cerebras_pytorch.data.adopted import AdoptedLoader
from cerebras_pytorch.data.first_batch import input_limit
from cerebras_pytorch.data.loader import DataLoader
from cerebras_pytorch.endings import CompilePhaseEnd
from cerebras_pytorch.ingredients import ingredients_of, refuse_uninitialised, what_changed
from cerebras_pytorch.limits import compile_limits
from cerebras_pytorch.log import logger
from cerebras_pytorch.nn import bare_module
from cerebras_pytorch.process import Captured
from cerebras_pytorch.report_log import log_report
from cerebras_pytorch.settings import RunSettings
from cerebras_pytorch.training.model import CompiledModel
from cerebras_pytorch.training.start import Parts, start_training
from cerebras_pytorch.training.tensorboard import refuse_without_package
from cerebras_wafer.compiler.emit import write_artifact
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.pipeline import compile_step
from cerebras_wafer.compiler.report.text import warning_text
from cerebras_wafer.errors import CompileError
from cerebras_wafer.simulator.load import is_complete, read_manifest


@located()
def compile(  # noqa: A001 (the name scripts use)
    model: nn.Module,
    optimizer: Optimizer,
    criterion: nn.Module,
    train_loader: DataLoader | torch.utils.data.DataLoader[Any],
    mixed_precision: MixedPrecision | None = None,
) -> CompiledModel:
    """Compile one training step and return the model that runs it.

    The step is forward, `criterion(output, target)`, backward and `optimizer.step()` on batches
    `(inputs, target)` of the size of the loader's first. By hand, an artifact that fits is used again. In phase
    compile of a job the script ends here; in phase execute the job's artifact is loaded and nothing is traced.
    Raises `CompileError` where the step cannot be mapped onto a wafer.
    """
    context = active_context()
    context.recorder.end()
    train_loader = _wrapped(context, train_loader)
    _refuse_wrong_arguments(context, model, optimizer, criterion, train_loader)
    settings = context.settings
    if settings.tensorboard and context.process.stage is None:
        refuse_without_package()
    precision = mixed_precision or MixedPrecision(torch.float32)
    parts = Parts(
        model=model,
        optimizer=optimizer,
        criterion=criterion,
        loader=train_loader,
        batch=divide(_first_batch(context, train_loader)),
        options=CompileOptions(
            system=settings.system,
            num_csx=settings.num_csx,
            precision=precision.spec(settings.precision_opt_level),
            execution_mode=settings.mode,
            micro_batch=settings.micro_batch_size,
            codegen=settings.codegen,
        ),
        tape=context.recorder.tape,
        faults=context.configuration.faults,
        loss_scaler=precision.loss_scaler(),
    )
    if settings.execution_mode == "data_streaming":
        logger.info("execution_mode data_streaming is taken as pipelined, which is the name of that mode now")
    if context.process.planning:
        context.process.captured = _captured(parts, settings)
        raise CompilePhaseEnd
    if context.process.stage != StageKind.EXECUTE:
        with compile_limits(context.process, settings):
            _ensure_artifact(context, parts)
    if context.process.stage == StageKind.COMPILE:
        raise CompilePhaseEnd
    context.session, compiled_model = start_training(context.process, settings, context.events, parts, context.put_back)
    context.recorder.end(for_good=True)
    return compiled_model


def _wrapped(context: Context, loader: DataLoader | torch.utils.data.DataLoader[Any]) -> DataLoader:
    """A plain torch loader is wrapped, and the loop may go on to use the plain one."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return loader
    _warn(context, "train_loader is a plain torch DataLoader and is wrapped: cbt.utils.data.DataLoader(loader) does it")
    return AdoptedLoader(loader)


def _first_batch(context: Context, loader: DataLoader) -> Any:
    with input_limit(context.process, loader.source, context.settings.input_timeout_seconds):
        return loader.first_batch(context.settings.seed)


def _warn(context: Context, message: str) -> None:
    logger.warning(message)
    context.events.append(WarningEvent, message=message)


def _refuse_wrong_arguments(
    context: Context, model: object, optimizer: object, criterion: object, loader: object
) -> None:
    in_a_job = context.process.stage is not None
    if context.session is not None or (in_a_job and context.process.artifact_key is not None):
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.SCRIPT_COMPILED_TWICE,
                message="cerebras_pytorch.compile was called a second time",
                advice="A job trains one compiled model: call compile once, and submit one job a model.",
            )
        )
    for name, value, kind, advice in (
        ("model", model, nn.Module, "Pass the module that is trained."),
        ("optimizer", optimizer, Optimizer, "Pass an optimizer of torch.optim over the model's parameters."),
        ("criterion", criterion, nn.Module, "Pass a module such as nn.CrossEntropyLoss(), not a function."),
        ("train_loader", loader, DataLoader, "Wrap it: cbt.utils.data.DataLoader(loader)."),
    ):
        if not isinstance(value, kind):
            raise CompileError(f"{name} is a {type(value).__name__}, not a {kind.__name__}", advice=advice)
    refuse_uninitialised(*(module for module in (model, criterion) if isinstance(module, nn.Module)))


def _captured(parts: Parts, settings: RunSettings) -> Captured:
    started = time.monotonic()
    step = capture_wafer_step(bare_module(parts.model), parts.criterion, parts.optimizer, parts.batch)
    return Captured(step, parts.options, settings.max_steps, time.monotonic() - started)


def _ensure_artifact(context: Context, parts: Parts) -> None:
    """Use the artifact in `compile/` where it fits, else say what changed and compile."""
    folder = context.process.run_directory.compile
    model = bare_module(parts.model)
    ingredients = ingredients_of(
        model, parts.criterion, parts.optimizer, parts.batch, parts.options, context.configuration
    )
    input_key = sha256_of_json(ingredients)
    started = time.monotonic()
    existing = read_manifest(folder)
    if existing and existing.input_key == input_key and is_complete(folder, existing):
        logger.info(f"Found the artifact {existing.artifact_key} in {folder.name}/: nothing changed, not compiling")
        compiled, key = False, existing.artifact_key
    else:
        if existing:
            changes = what_changed(existing.ingredients, ingredients) or ["files of the artifact"]
            logger.info(f"Recompiling, because this changed: {'; '.join(changes)}")
        compiled, key = True, _compile_into(context, parts, input_key, ingredients)
    context.process.artifact_key = key
    seconds = time.monotonic() - started
    context.events.append(ArtifactEvent, artifact_key=key, compiled=compiled, seconds=seconds)


def _compile_into(context: Context, parts: Parts, input_key: str, ingredients: dict[str, JsonValue]) -> str:
    started = time.monotonic()
    logger.info("Compiling the training step; this is done once for a model, batch size and system")
    step = capture_step(bare_module(parts.model), parts.criterion, parts.optimizer, parts.batch)
    logger.info(f"Captured the graph: {len(step.parameters)} parameters, optimizer {step.optimizer.name}")
    compiled = compile_step(step, parts.options, logger.info)
    folder = context.process.run_directory.compile
    write_artifact(compiled, folder, input_key, ingredients, logger.info)
    (folder / ".cerebrasignore").write_text("*\n", encoding="utf-8")
    log_report(compiled.report)
    for warning in compiled.plan.warnings:
        context.events.append(WarningEvent, message=warning_text(warning))
    logger.info(f"Compile report: {folder.name}/{REPORT_PAGE_FILE} to look at, {REPORT_TEXT_FILE} to read")
    logger.info(f"Compiled {compiled.key} into {folder.name}/ in {time.monotonic() - started:.1f} s")
    return compiled.key
