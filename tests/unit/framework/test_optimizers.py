"""Optimizers: several steps from the artifact are those of eager PyTorch, also while a schedule moves the rate."""

import copy

import pytest
import torch
from tests.fixtures.training import compiled, train, train_eagerly
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

import cerebras_pytorch as cbt
from cerebras_contract.events import RUN_EVENT

pytestmark = pytest.mark.usefixtures("run_folder")

SCHEDULES = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.02, total_steps=12, cycle_momentum=False),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=10),
}
OPTIMIZERS = {
    "SGD": (lambda p, lr=0.1: torch.optim.SGD(p, lr=lr, weight_decay=0.01), "cosine"),
    "momentum": (lambda p, lr=0.1: torch.optim.SGD(p, lr=lr, momentum=0.9), "lambda"),
    "Nesterov": (lambda p, lr=0.1: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True), "one cycle"),
    "Adam": (lambda p, lr=0.01: torch.optim.Adam(p, lr=lr, amsgrad=True), "cosine"),
    "AdamW": (lambda p, lr=0.01: torch.optim.AdamW(p, lr=lr), "one cycle"),
    "Adagrad": (lambda p, lr=0.1: torch.optim.Adagrad(p, lr=lr, lr_decay=0.1), "cosine"),
    "RMSprop": (lambda p, lr=0.01: torch.optim.RMSprop(p, lr=lr), "lambda"),
    "centered": (lambda p, lr=0.01: torch.optim.RMSprop(p, lr=lr, momentum=0.9, centered=True), "one cycle"),
    "NAdam": (lambda p, lr=0.01: torch.optim.NAdam(p, lr=lr), "lambda"),
    "Adafactor": (lambda p, lr=0.05: torch.optim.Adafactor(p, lr=lr, weight_decay=0.1), "cosine"),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 3))


def compare(make_optimizer, schedule=None):
    model = network()
    eager = copy.deepcopy(model)
    run = train(model, make_optimizer, epochs=2, schedule=schedule)
    expected = train_eagerly(eager, make_optimizer, epochs=2, schedule=schedule)
    assert len(run.losses) == 10
    assert run.losses == pytest.approx(expected, rel=1e-5)
    for ours, theirs in zip(model.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def artifact_events(folder):
    """The last run's compilations and findings of an artifact."""
    events = [RUN_EVENT.validate_json(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
    return [event for event in events if event.kind == "artifact"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_are_those_of_eager_pytorch(name, run_folder):
    make_optimizer, schedule = OPTIMIZERS[name]
    compare(make_optimizer, SCHEDULES[schedule])
    assert [event.compiled for event in artifact_events(run_folder)] == [True]


def key_of(make_optimizer, **changed):
    return compiled(network(), make_optimizer=lambda parameters: make_optimizer(parameters, **changed)).key


@pytest.mark.parametrize("name", ["momentum", "NAdam", "Adafactor"])
def test_another_rate_has_the_same_key(name):
    make_optimizer, _ = OPTIMIZERS[name]
    assert key_of(make_optimizer, lr=0.003) == key_of(make_optimizer)


def test_another_constant_has_another_key():
    assert key_of(torch.optim.Adam, betas=(0.8, 0.99)) != key_of(torch.optim.Adam)


def test_another_rate_needs_no_second_compile(run_folder):
    make_optimizer, _ = OPTIMIZERS["AdamW"]
    first = train(network(), lambda p: make_optimizer(p, lr=0.01))
    (compile_event,) = artifact_events(run_folder)
    second = train(network(), lambda p: make_optimizer(p, lr=0.02))
    (reuse_event,) = artifact_events(run_folder)
    assert (compile_event.compiled, reuse_event.compiled) == (True, False)
    assert compile_event.artifact_key == reuse_event.artifact_key
    assert first.losses != second.losses


class ByTheNormOfAll(torch.optim.SGD):
    """Its update of one parameter depends on the gradients of all."""

    def step(self, closure=None):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        gradients = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient / norm
        super().step()


def test_an_optimizer_that_looks_at_all_parameters_is_traced_as_a_whole():
    compare(lambda p: ByTheNormOfAll(p, lr=0.1))


def test_groups_with_rates_and_constants_of_their_own():
    def two_groups(parameters):
        weights, others = [], []
        for parameter in parameters:
            (weights if parameter.dim() > 1 else others).append(parameter)
        return torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.05}], lr=0.01)

    compare(two_groups, SCHEDULES["cosine"])


def test_a_scheduler_that_cycles_the_momentum_is_refused_at_compile():
    with pytest.raises(cbt.CompileError, match="changes the momentum of AdamW") as caught:
        train(network(), torch.optim.AdamW, schedule=lambda o: OneCycleLR(o, max_lr=0.1, total_steps=12))
    assert "cycle_momentum=False" in caught.value.report.advice
