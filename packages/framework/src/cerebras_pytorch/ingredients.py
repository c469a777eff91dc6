"""What a compilation depends on, known before tracing: to find an artifact again, and to say what changed."""

import os
import sys
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from cerebras_contract.configuration import RunConfiguration, compile_time_digest
from cerebras_contract.digests import sha256_of_file, sha256_of_json
from cerebras_contract.systems import load_system
from cerebras_pytorch.capture.batch import Batch, specs_of
from cerebras_pytorch.capture.optimizer import constants_of
from cerebras_pytorch.capture.step import modules_in_eval_mode
from cerebras_pytorch.nn import bare_module
from cerebras_wafer.compiler.frontends.training_step import CompileOptions, tensor_spec
from cerebras_wafer.errors import CompileError
from cerebras_wafer.versions import compiler_versions, instruction_set


def ingredients_of(
    model: nn.Module,
    criterion: nn.Module,
    optimizer: Optimizer,
    batch: Batch,
    options: CompileOptions,
    configuration: RunConfiguration,
) -> dict[str, JsonValue]:
    """Everything that may change the compiled program, as readable values and digests of what is long."""
    versions = compiler_versions()
    system = load_system(options.system)
    return {
        "batch size": batch.size,
        "inputs": [*map(str, specs_of(batch.inputs))],
        "targets": [*map(str, specs_of(batch.target))],
        "model": _digest_of_module(model),
        "criterion": _digest_of_module(criterion),
        "modules in eval mode": [*modules_in_eval_mode(model)] if model.training else [],
        "optimizer": type(optimizer).__name__,
        "hyperparameters": [*constants_of(optimizer)],
        "precision": options.precision.model_dump(mode="json"),
        "system": system.name,
        "figures of the system": sha256_of_json(system.model_dump(mode="json")),
        "num_csx": options.num_csx,
        "execution mode": options.execution_mode or "auto",
        "micro-batch": options.micro_batch,
        "code": f"inductor for {instruction_set()}" if options.codegen == "inductor" else options.codegen,
        "configuration": compile_time_digest(configuration),
        "script and modules": sha256_of_json(_user_sources()),
        "script arguments": list(sys.argv[1:]),
        "compiler": versions.compiler,
        "torch": versions.torch,
    }


def refuse_uninitialised(*modules: nn.Module) -> None:
    """Raise `CompileError` where a lazy module has seen no batch yet: its parameters have no shape."""
    names = [
        f"{path}.{name}".lstrip(".") + f" of {type(part).__name__}"
        for module in modules
        for path, part in bare_module(module).named_modules()
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if is_lazy(tensor)
    ]
    if names:
        raise CompileError(
            f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no shape yet: a lazy module takes it from the"
            " first batch that it sees",
            advice="Run one batch through the model before compile: `model(next(iter(train_loader))[0])`.",
        )


def what_changed(before: dict[str, JsonValue], now: dict[str, JsonValue]) -> list[str]:
    """One phrase an ingredient that differs: its values where they are short."""
    return [
        _change(name, before.get(name), now.get(name))
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


def _change(name: str, old: JsonValue, new: JsonValue) -> str:
    readable = all(len(str(value)) <= 60 for value in (old, new)) and not _is_digest(new)
    return f"{name} {old} -> {new}" if readable else name


def _is_digest(value: JsonValue) -> bool:
    return isinstance(value, str) and len(value) == 64


def _digest_of_module(module: nn.Module) -> str:
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    shapes = [f"{tensor_spec(name, tensor)} {tensor.requires_grad}" for name, tensor in tensors]
    constants = [
        f"{path}.{name} = {value!r}"
        for path, part in module.named_modules()
        for name, value in sorted(vars(part).items())
        if name != "training" and isinstance(value, (bool, int, float, str, tuple, torch.dtype, torch.Tensor))
    ]
    return sha256_of_json([type(module).__qualname__, repr(module), shapes, constants])


def _user_sources() -> list[str]:
    """Digests of the source files of the script and of its own modules: not of what is installed."""
    installed = {os.path.realpath(prefix) + os.sep for prefix in (sys.prefix, sys.base_prefix)}
    as_written = tuple(installed | {prefix + os.sep for prefix in (sys.prefix, sys.base_prefix)})
    # Links are followed only in the few paths that are not plainly of what is installed: there are thousands.
    files = [file for file in _module_files() if file.endswith(".py") and not file.startswith(as_written)]
    paths = {os.path.realpath(file) for file in files}
    own = [Path(path) for path in paths if not path.startswith(tuple(installed))]
    return sorted(sha256_of_file(path) for path in own if path.is_file() and not _is_ours(path))


def _module_files() -> list[str]:
    modules = list(sys.modules.values())
    return [file for module in modules if isinstance(file := getattr(module, "__file__", None), str)]


def _is_ours(path: Path) -> bool:
    return any(part in ("cerebras_pytorch", "cerebras_wafer", "cerebras_contract") for part in path.parts)
