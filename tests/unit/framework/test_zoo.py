"""The examples: each trains from its artifact as in plain PyTorch; published sizes are captured without memory."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.fixtures.zoo import EXAMPLES, TINY, load, parameters, published
from torch._ops import OpOverload

import cerebras_pytorch as cbt
import cerebras_pytorch.compilation
from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.run_directory import RunDirectory
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.step import capture_step, capture_wafer_step
from cerebras_pytorch.nn import bare_module
from cerebras_pytorch.process import Process, set_current_process
from cerebras_wafer.compiler.frontends.places import module_path, place_text

STEPS = 8
SHORT = {"train_input": {"batch_size": 16, "epochs": 1}, "runconfig": {"max_steps": STEPS, "checkpoint_steps": 0}}
SHALLOW = {
    ("gpt2", "gpt3-175b"): {"layers": 1},
    ("llama", "llama2-70b"): {"layers": 1},
    ("resnet", "resnet-50"): {"layers": [1, 1]},
    ("unet", "unet"): {"depth": 1},
}
Place = tuple[str, str | None, str | None]


class Enough(Exception):
    """Raised where a script in plain PyTorch has made its steps."""


class InOrder(torch.utils.data.DataLoader):
    """A loader that does not shuffle: a compiled run shuffles with a generator of its own."""

    def __init__(self, dataset, batch_size, shuffle):
        super().__init__(dataset, batch_size)


def losses_of(name: str, folder: Path, compile_or_not: Callable, monkeypatch) -> list[float]:
    """Run the example's `main` for `STEPS` steps, and note each loss."""
    configuration = RunConfiguration.model_validate(parameters(name, TINY[name], SHORT))
    set_current_process(Process(RunDirectory(folder), configuration=configuration))
    losses: list[float] = []

    def note(_criterion, _arguments, loss):
        losses.append(loss.item())
        if len(losses) == STEPS + 1:
            raise Enough

    def compile_and_note(model, optimizer, criterion, loader, mixed_precision):
        trained = compile_or_not(model, optimizer, criterion, loader, mixed_precision)
        criterion.register_forward_hook(note)
        return trained

    monkeypatch.setattr(cbt, "compile", compile_and_note)
    monkeypatch.setattr(torch.utils.data, "DataLoader", InOrder)
    with suppress(Enough):
        load(name).main()
    return losses[:STEPS]


def places(program) -> list[Place]:
    """Name, path of the module and line of each operation."""
    nodes = [node for node in program.graph_module.graph.nodes if isinstance(node.target, OpOverload)]
    return [(node.name, _module(node), place_text(node)) for node in nodes]


def _module(node) -> str | None:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return module_path(node) if stack else None


@pytest.mark.parametrize("name", TINY)
def test_an_example_trains_from_its_artifact_as_in_pytorch(name, run_folder, monkeypatch):
    """And every operation of its step has a module path and a line of the example's."""
    found: list[Place] = []
    weighted: set[str] = set()

    def capture(model, *arguments):
        step = capture_step(model, *arguments)
        found.extend(places(step.joint))
        weighted.update(path for path, part in model.named_modules() if part._parameters)
        assert all(module is not None and place for _, module, place in places(step.loss))
        return step

    monkeypatch.setattr(cerebras_pytorch.compilation, "capture_step", capture)
    compiled = losses_of(name, run_folder, cbt.compile, monkeypatch)
    assert len(found) > 30
    assert [place for place in found if place[1] is None or f"examples/{name}/" not in str(place[2])] == []
    assert {module for _, module, _ in found} >= weighted
    eager = losses_of(name, run_folder, lambda model, *_: model, monkeypatch)
    assert len(compiled) == len(eager) == STEPS
    assert compiled == pytest.approx(eager, rel=1e-4)
    assert sum(compiled[STEPS // 2 :]) < sum(compiled[: STEPS // 2])


@pytest.mark.parametrize(("name", "configuration"), SHALLOW)
def test_a_published_size_is_captured_without_memory(name, configuration):
    params = published(name, configuration)
    params["model"].update(SHALLOW[name, configuration])
    params["train_input"]["batch_size"] = 2
    parts = load(name).build(params)
    model = bare_module(parts.model)
    step = capture_wafer_step(model, parts.criterion, parts.optimizer, divide(next(iter(parts.loader))))
    nodes = step.joint.graph_module.graph.nodes
    values = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert {value.device.type for value in values} == {"cpu"}
    assert "meta" not in step.joint.graph_module.code
    assert all(parameter.is_meta for parameter in model.parameters())


def test_every_example_has_a_test_and_a_line_in_the_readme():
    names = {path.parent.name for path in EXAMPLES.glob("*/train.py")}
    assert names == {*TINY, "mnist"}
    text = (EXAMPLES / "README.md").read_text()
    configurations = [path.stem for path in EXAMPLES.glob("*/configs/*.yaml")]
    assert [name for name in (*names, *configurations) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/configs/*.yaml")), ids=lambda path: path.stem)
def test_a_published_configuration_builds_the_size_that_the_readme_names(path: Path):
    model = load(path.parents[1].name).build(published(path.parents[1].name, path.stem)).model
    millions = round(sum(parameter.numel() for parameter in model.parameters()) / 1e6)
    assert f"| `{path.stem}` | {millions:,} |" in (EXAMPLES / "README.md").read_text()
