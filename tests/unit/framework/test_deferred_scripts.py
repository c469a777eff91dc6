"""What scripts do around a block of the meta device, and inside it, that a recording could miss."""

import copy

import numpy as np
import pytest
import torch
from tests.fixtures.deferred import assert_as_on_the_cpu, layer
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_pytorch.endings import CompilePhaseEnd
from cerebras_pytorch.process import Process, set_current_process


def seeded_alike(device):
    with torch.device(device):
        torch.manual_seed(0)
        first = layer()
        torch.manual_seed(0)
        return [first, layer()]


def put_back(device):
    with torch.device(device):
        first, state = layer(), torch.get_rng_state()
        second = layer()
        torch.set_rng_state(state)
        return [first, second, layer()]


def forked(device):
    with torch.random.fork_rng(devices=[]), torch.device(device):
        first = layer()
    with torch.device(device):
        return [first, layer()]


def generators_of_one_seed(device):
    with torch.device(device):
        models = [layer(), layer()]
        for model in models:
            nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(3))
            nn.init.sparse_(model.bias[:, None], 0.5, generator=torch.Generator().manual_seed(3))
        return models


def drawn_on_the_cpu_between(device):
    with torch.device(device):
        first = layer()
    first.register_buffer("drawn", torch.randn(5))
    with torch.device(device):
        return [first, layer()]


def old_constructor(device):
    with torch.device(device):
        model = layer()
        model.old = nn.Parameter(torch.Tensor(5, 5).uniform_(-1, 1))
        model.then = layer()
        return model


def initialised_afterwards(device):
    with torch.device(device):
        models = [layer() for _ in range(5)]
    models[0].weight.data.normal_()
    nn.init.trunc_normal_(models[1].weight)
    nn.init.orthogonal_(models[2].weight)
    nn.init.zeros_(models[3].weight)
    models[3].weight.data[2:4, 1] = 5.0
    models[4] = copy.deepcopy(models[0])
    return models


def numbers(device):
    with torch.device(device):
        model = layer()
        model.register_buffer("list", torch.asarray([1.0, 2.0]))
        model.register_buffer("new", model.weight.new_tensor([3.0]))
        changing = np.ones(3)
        model.register_buffer("array", torch.tensor(changing))
        changing[:] = 2
        model.register_buffer("shared", torch.as_tensor(np.arange(3.0)))
        model.weight.data[[0, 2]] = 0
        model.register_buffer("rates", torch.full((2,), torch.linspace(0, 1, 5)[1].item()))
        if (model.weight.abs() > 0.2).any():
            model.bias.data.fill_(float(model.weight.detach().max()))
        return model


def other_forms(device):
    with torch.device(device):
        model = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
        model.register_buffer("expanded", torch.arange(5).expand(2, -1))
        model.register_buffer("part", torch.arange(10.0)[2:5])
        model.transposed = nn.Parameter(torch.randn(2, 3).t())
        model.other = nn.Linear(3, 3).to(torch.bfloat16)
        model.other.weight.data = torch.randn(3, 3, dtype=torch.bfloat16) * 2
        return model


def layers_of_many_kinds(device):
    with torch.device(device):
        return nn.Sequential(
            nn.LSTM(3, 4, 2),
            nn.MultiheadAttention(8, 2),
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
            nn.ConvTranspose2d(3, 4, 3),
            nn.EmbeddingBag(4, 5),
            nn.utils.parametrizations.spectral_norm(nn.Linear(20, 20)),
            nn.utils.parametrizations.weight_norm(nn.Linear(20, 20)),
        )


def default_device(device):
    torch.set_default_device(device)
    try:
        return layer()
    finally:
        torch.set_default_device(None)


SCRIPTS = (
    seeded_alike,
    put_back,
    forked,
    generators_of_one_seed,
    drawn_on_the_cpu_between,
    old_constructor,
    initialised_afterwards,
    numbers,
    other_forms,
    layers_of_many_kinds,
    default_device,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_what_scripts_do_around_it(script):
    assert_as_on_the_cpu(script)


class Noisy(nn.Module):
    """A buffer that no checkpoint holds is drawn, too."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.register_buffer("scale", torch.rand(16), persistent=False)

    def forward(self, x):
        return self.second(self.norm(self.first(x).relu()) * self.scale)


def trained(device, max_steps):
    """Losses of a script that draws before, between and after: weights, data, and noise in its loop."""
    losses = []
    with cbt.init_context() as context:
        torch.manual_seed(3)
        with torch.device(device):
            model = Noisy()
        model.apply(lambda part: part.weight.data.normal_(std=0.3) if isinstance(part, nn.Linear) else None)
        data = torch.utils.data.TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
        optimizer, criterion = torch.optim.Adam(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
        train_loader = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(data, 8))
        context.set_run_config(cbt.utils.config.RunConfig(checkpoint_steps=3, max_steps=max_steps))
        compiled_model = cbt.compile(model, optimizer, criterion, train_loader)
        for inputs, target in train_loader:
            optimizer.zero_grad()
            loss = criterion(compiled_model(inputs + 0.1 * torch.randn(inputs.shape)), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def in_phases(device, folder):
    """Compiled, trained for three steps, and trained on from the checkpoint, each as a phase of its own."""
    directory, losses = RunDirectory(folder), []
    set_current_process(Process(directory, stage=StageKind.COMPILE))
    with pytest.raises(CompilePhaseEnd):
        trained(device, 6)
    for max_steps in (3, 6):
        set_current_process(Process(directory, stage=StageKind.EXECUTE))
        losses += trained(device, max_steps)
    return losses


def test_all_that_a_script_draws_is_as_with_a_model_on_the_cpu(run_folder):
    expected = trained("cpu", 6)
    assert len(expected) == 6
    for number, run in enumerate((in_phases("cpu", run_folder / "cpu"), in_phases("meta", run_folder / "meta"))):
        assert run == expected, number
    set_current_process(Process(RunDirectory(run_folder / "by_hand")))
    assert trained("meta", 6) == expected
