"""Capture: the programs compute what autograd computes, on any kind of model, also one without values."""

import pytest
import torch
from tests.fixtures.training import Network, loader
from torch import nn
from torch.nn import functional

import cerebras_pytorch as cbt
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.step import capture_step
from cerebras_wafer.compiler.frontends.places import module_path, source_line
from cerebras_wafer.compiler.keys import canonical_program


class Normalised(nn.Module):
    """BatchNorm, a module used twice, a residual sum."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(self.linear(torch.tanh(self.linear(x)))) + x


class Tied(nn.Module):
    """Integer inputs, a head whose weight is the embedding's, attention, dropout."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)

    def forward(self, tokens):
        x = (self.embedding(tokens) * self.scale)[:, None]
        x = functional.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]
        return self.head(self.dropout(x))


class Several(nn.Module):
    """Two inputs, one of integers; two outputs, one of them without a gradient."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Embedding(5, 4)

    def forward(self, features, tokens):
        return {"sum": self.left(features) + self.right(tokens), "next": tokens + 1}


class OfSum(nn.Module):
    def forward(self, outputs, target):
        return functional.mse_loss(outputs["sum"], target)


class OfTokens(nn.Module):
    def forward(self, logits, target):
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def cases(name):
    """A model, its criterion and a batch."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 5, (4, 5), generator=generator)
    features = torch.randn(4, 6, generator=generator)
    match name:
        case "normalised":
            return Normalised(), nn.MSELoss(), (features, torch.zeros(4, 6))
        case "tied":
            return Tied(), OfTokens(), (tokens, tokens)
        case "several":
            return Several(), OfSum(), ((features[:, :3], tokens[:, 0]), torch.zeros(4, 4))
    raise ValueError(name)


CASES = ("normalised", "tied", "several")


def captured(model, criterion, batch):
    return capture_step(model, criterion, torch.optim.SGD(model.parameters(), lr=0.1), divide(batch))


def run(program, tensors):
    """Results of a program by role."""
    arguments = [tensors[role] for role in program.inputs]
    results = torch.fx.Interpreter(program.graph_module).run(*arguments, enable_io_processing=False)
    return dict(zip(program.outputs, results, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_programs_compute_what_autograd_computes(name):
    torch.manual_seed(0)
    model, criterion, batch = cases(name)
    step, divided = captured(model, criterion, batch), divide(batch)
    tensors = {
        **{f"parameter:{name}": value.detach() for name, value in model.named_parameters(remove_duplicate=False)},
        **{f"buffer:{name}": value.clone() for name, value in model.named_buffers()},
        **{f"input:{number}": value for number, value in enumerate(divided.inputs)},
    }
    torch.manual_seed(7)
    outputs = model(*divided.inputs)
    flat = list(outputs.values()) if isinstance(outputs, dict) else [outputs]
    loss = criterion(outputs, divided.target)
    differentiable = [(number, value) for number, value in enumerate(flat) if value.requires_grad]
    tangents = torch.autograd.grad(loss, [value for _, value in differentiable], retain_graph=True)
    loss.backward()
    torch.manual_seed(7)
    by_number = {f"tangent:{number}": tangent for (number, _), tangent in zip(differentiable, tangents, strict=True)}
    results = run(step.joint, {**tensors, **by_number})
    for number, value in enumerate(flat):
        torch.testing.assert_close(results[f"output:{number}"], value.detach())
    gradients = {role.removeprefix("gradient:"): v for role, v in results.items() if role.startswith("gradient:")}
    assert len(gradients) == len(list(model.parameters()))  # of a tied weight one
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(parameter).grad)
    changed = {role: value for role, value in results.items() if role.startswith("buffer:")}
    for role, value in changed.items():
        torch.testing.assert_close(value, model.get_buffer(role.removeprefix("buffer:")))
    assert len(changed) == (3 if name == "normalised" else 0)
    given = {f"output:{number}": value.detach() for number, value in enumerate(flat)}
    torch.testing.assert_close(run(step.loss, {**given, "target:0": divided.target})["loss:0"], loss.detach())


@pytest.mark.parametrize("name", CASES)
def test_a_model_without_values_is_captured_as_on_the_cpu(name):
    model, criterion, batch = cases(name)
    with torch.device("meta"):
        shapes, _, _ = cases(name)
    before = list(shapes.parameters())
    expected, found = captured(model, criterion, batch), captured(shapes, criterion, batch)
    for program in ("joint", "loss", "evaluate"):
        assert canonical_program(getattr(found, program)) == canonical_program(getattr(expected, program))
    assert found.parameters == expected.parameters
    assert [id(parameter) for parameter in shapes.parameters()] == [id(parameter) for parameter in before]
    assert all(tensor.is_meta for tensor in (*shapes.parameters(), *shapes.buffers()))


def test_a_default_device_of_the_script_changes_nothing():
    model, criterion, batch = cases("tied")
    expected = captured(model, criterion, batch)
    with torch.device("meta"):
        found = captured(model, criterion, batch)
    assert canonical_program(found.joint) == canonical_program(expected.joint)


def test_attention_is_one_operation():
    model, criterion, batch = cases("tied")
    with torch.device("meta"):
        model, _, _ = cases("tied")
    code = captured(model, criterion, batch).joint.graph_module.code
    assert "_scaled_dot_product_flash_attention_for_cpu.default" in code
    assert "_scaled_dot_product_flash_attention_for_cpu_backward.default" in code
    assert "_softmax" not in code


def test_every_operation_has_a_module_and_a_line():
    model, criterion, batch = cases("normalised")
    step = captured(model, criterion, batch)
    joint, loss = (
        [node for node in getattr(step, name).graph_module.graph.nodes if node.op == "call_function"]
        for name in ("joint", "loss")
    )
    assert {module_path(node) for node in joint} == {"", "linear", "norm"}
    assert {source_line(node)[0].split("/")[-1] for node in (*joint, *loss)} == {"test_capture.py"}
    sums = [node for node in joint if "Gradient addition" in (node.stack_trace or "")]
    assert sums
    assert all(module_path(node) == "linear" for node in sums)


def test_nothing_is_drawn_from_the_random_generators_and_no_buffer_moves():
    model, batch = Network(dropout=0.5), next(iter(loader()))
    state, buffers = torch.get_rng_state(), [value.clone() for value in model.buffers()]
    captured(model, nn.CrossEntropyLoss(), batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))


def test_tensors_that_are_no_parameters_and_have_no_values_are_refused():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.scale = torch.ones(3)

        def forward(self, x):
            return self.linear(x) * self.scale

    with torch.device("meta"):
        model = Hidden()
    with pytest.raises(cbt.CompileError, match="Hidden has a tensor without values, scale") as caught:
        captured(model, nn.MSELoss(), (torch.zeros(2, 3), torch.zeros(2, 3)))
    assert "register_buffer" in caught.value.report.advice
