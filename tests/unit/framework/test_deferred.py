"""A model built on the meta device gets, bit for bit, the values that it would have on the CPU."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fixtures import zoo
from tests.fixtures.training import Network, train
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_pytorch.deferred.give import give_values
from cerebras_pytorch.deferred.needed import needed_for
from cerebras_pytorch.deferred.record import Recorder, recording
from cerebras_pytorch.deferred.tape import Tape
from cerebras_pytorch.endings import CompilePhaseEnd
from cerebras_pytorch.process import Process, set_current_process

META = torch.device("meta")


def on_the_cpu(tensor):
    return torch.empty_like(tensor, device="cpu")


def built(make):
    """What `make` builds while it is recorded, with its values."""
    tape = Tape()
    with recording(Recorder(tape)):
        torch.manual_seed(7)
        models = make("meta")
    models = models if isinstance(models, list) else [models]
    assert any(tensor.is_meta for _, tensor in tensors(*models))
    for model in models:
        give_values(model, tape, on_the_cpu, lambda _: None)
    return models


def assert_as_on_the_cpu(make):
    """Values, and what is drawn next."""
    torch.manual_seed(7)
    expected = make("cpu")
    expected, next_drawn = expected if isinstance(expected, list) else [expected], torch.rand(3)
    models = built(make)
    assert torch.equal(torch.rand(3), next_drawn)
    for (name, theirs), (_, ours) in zip(tensors(*expected), tensors(*models), strict=True):
        assert ours.device.type == "cpu"
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs), name
        assert ours.requires_grad == theirs.requires_grad
    return models[0]


def tensors(*models):
    return [
        (f"{number}.{name}", tensor)
        for number, model in enumerate(models)
        for named in (model.named_parameters, model.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    ]


class Initialised(nn.Module):
    """Initialisers of all kinds, as people write them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 12, bias=False)
        self.second.weight = nn.Parameter(torch.randn(12, 8) * 0.1)
        self.table = nn.Embedding(9, 4, padding_idx=2)
        self.scale = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.tied = nn.Linear(4, 9)
        self.tied.weight = self.table.weight
        self.register_buffer("angles", torch.outer(torch.arange(5.0), 1 / 10.0 ** torch.linspace(0, 1, 4)).cos())
        self.register_buffer("hidden", torch.tril(torch.ones(3, 3)), persistent=False)
        self.filters = nn.Conv2d(2, 3, 3)
        self.normed = nn.BatchNorm1d(3)
        self.apply(self._init_weights)
        nn.init.trunc_normal_(self.first.bias, std=0.02, a=-0.01, b=0.01)
        nn.init.orthogonal_(self.second.weight, gain=2.0)
        with torch.no_grad():
            self.filters.weight[0].zero_()
            self.filters.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
            self.first.weight[:, :4] += self.second.weight.t()[:, :4]

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
        if isinstance(module, nn.Embedding):
            nn.init.sparse_(module.weight, sparsity=0.5)
            module.weight.data[module.padding_idx].zero_()
        if isinstance(module, nn.Conv2d):
            nn.init.dirac_(module.weight)
            nn.init.kaiming_normal_(module.weight, mode="fan_out")


def on(kind):
    """Builds a model of a class on a device."""

    def make(device):
        with torch.device(device):
            return kind()

    return make


def test_initialisers_of_all_kinds():
    model = assert_as_on_the_cpu(on(Initialised))
    assert model.tied.weight is model.table.weight


class Reseeded(nn.Module):
    """A script seeds in between, and has a generator of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 20)
        self.second = nn.Linear(20, 20)
        torch.manual_seed(3)
        self.third = nn.Linear(20, 20)
        own = torch.Generator().manual_seed(5)
        nn.init.normal_(self.first.weight, generator=own)
        nn.init.trunc_normal_(self.second.weight, generator=own)
        self.fourth = nn.Linear(20, 20)


def test_seeds_and_generators_of_the_script():
    assert_as_on_the_cpu(on(Reseeded))


@pytest.mark.parametrize("name", zoo.TINY)
def test_every_model_of_the_zoo(name):
    module = zoo.load(name)
    tiny = zoo.TINY.get(name, {})
    assert_as_on_the_cpu(lambda device: module.build(zoo.parameters(name, tiny, {"model": {"device": device}})).model)


def test_several_models_are_told_apart():
    tape = Tape()
    with recording(Recorder(tape)):
        torch.manual_seed(1)
        with META:
            models = [Network(), Network()]
        with META:
            models.append(Network())
    torch.manual_seed(1)
    expected = [Network(), Network(), Network()]
    for number in (2, 0, 1):
        give_values(models[number], tape, on_the_cpu, lambda _: None)
        assert torch.equal(models[number].head.weight, expected[number].head.weight)


def test_an_optimizer_keeps_its_parameters():
    tape = Tape()
    with recording(Recorder(tape)), META:
        model = Network()
    optimizer = torch.optim.Adam(model.parameters())
    before = list(model.parameters())
    give_values(model, tape, on_the_cpu, lambda _: None)
    assert all(old is new for old, new in zip(before, model.parameters(), strict=True))
    assert optimizer.param_groups[0]["params"][0] is model.conv.weight


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad])
@pytest.mark.parametrize("mode", ["weight_streaming", "pipelined"])
def test_training_from_meta_is_training_from_the_cpu(mode, optimizer, run_folder):
    def run(device):
        torch.manual_seed(0)

        def make():
            with torch.device(device):
                return Network()

        return train(make, lambda parameters: optimizer(parameters, lr=0.01), execution_mode=mode).losses

    assert run("meta") == run("cpu")


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


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
def test_a_state_that_an_optimizer_loads_is_kept(kind, run_folder):
    model = Network()
    before = kind(model.parameters(), lr=0.01)
    nn.functional.cross_entropy(model(torch.ones(2, 1, 6, 6)), torch.tensor([0, 1])).backward()
    before.step()

    def run(device):
        def optimizer(parameters):
            loaded = kind(parameters, lr=0.01)
            loaded.load_state_dict(before.state_dict())
            return loaded

        torch.manual_seed(0)
        return train(lambda: on(Network)(device), optimizer).losses

    assert run("meta") == run("cpu")


def refused(make):
    tape = Tape()
    with pytest.raises(ReportedError) as caught, recording(Recorder(tape)):
        give_values(make(), tape, on_the_cpu, lambda _: None)
    assert caught.value.report.code is ErrorCode.RUN_NO_VALUES
    return caught.value.report


def test_what_was_not_recorded_is_refused_by_name():
    report = refused(lambda: nn.Linear(3, 3, device="meta"))
    assert "how weight is initialised" in report.message
    assert "weight was not made inside of such a block" in report.message
    assert "build it on the CPU" in report.advice


def test_a_view_that_is_held_is_told():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.first = [self.weight[:1]]

    assert (
        "weight has no values and cannot be given any: a view of it is held"
        in refused(lambda: on(Held)("meta")).message
    )


def layer():
    return nn.Linear(20, 20)


# What scripts do around the block, and inside it, that a recording could miss.


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


def test_a_parameter_keeps_its_class_its_attributes_and_its_hooks():
    class Marked(nn.Parameter):
        pass

    tape, called = Tape(), []
    with recording(Recorder(tape)), META:
        model = layer()
        model.weight = Marked(torch.ones(20, 20))
    model.weight.decays = False
    model.weight.register_hook(lambda _: called.append("gradient"))
    model.weight.register_post_accumulate_grad_hook(lambda _: called.append("accumulated"))
    give_values(model, tape, on_the_cpu, lambda _: None)
    model(torch.ones(1, 20)).sum().backward()
    assert isinstance(model.weight, Marked)
    assert model.weight.decays is False
    assert called == ["gradient", "accumulated"]


def test_nothing_is_different_outside_of_it():
    def operations():
        return torch.utils._python_dispatch._get_current_dispatch_mode()

    is_meta = torch.Tensor.is_meta
    with recording(Recorder(Tape())):
        assert operations() is None
        with torch.device("cpu"):
            layer()
        assert operations() is None
        with META:
            layer()
        assert operations() is not None
    assert operations() is None
    assert torch.Tensor.is_meta is is_meta
    assert "is_meta" not in vars(torch.Tensor)


def test_what_is_not_needed_is_not_called():
    """Of another model, and of an initialiser that is replaced by a later one, only what draws."""
    tape = Tape()
    with recording(Recorder(tape)), META:
        other, model = nn.BatchNorm1d(50), nn.Linear(4, 4)
        nn.init.ones_(model.weight)
        nn.init.normal_(model.weight)
    steps = needed_for(tape, {tape.part(model.weight).storage}, set()).steps
    names = [step.call.function.overloadpacket.__name__ for step in steps]
    assert names == ["uniform_", "uniform_", "normal_"]
    home = tape.part(model.weight).storage
    assert [home in step.begins_last for step in steps] == [False, False, True]
    assert home in steps[0].ends
    assert other.weight.is_meta


def test_what_a_kernel_of_the_meta_device_lacks_is_told():
    report = refused(lambda: on(lambda: nn.utils.parametrizations.orthogonal(layer()))("meta"))
    assert "geqrf cannot be called on the meta device" in report.message
    assert report.file.endswith("test_deferred.py")


def test_what_fails_on_the_cpu_is_told():
    def make():
        with META:
            model = nn.Embedding(3, 3)
            model.weight.data[torch.tensor([7])] = 0.0
        return model

    report = refused(make)
    assert "index_put_.default, which initialises it, fails on the CPU: index 7 is out of bounds" in report.message
    assert report.file.endswith("test_deferred.py")


SCRIPT = """
import resource
import torch
from torch import nn
from pathlib import Path
from cerebras_pytorch.deferred.give import give_values
from cerebras_pytorch.deferred.record import Recorder, recording
from cerebras_pytorch.deferred.tape import Tape
from cerebras_wafer.simulator.store import MappedMemory

def build():
    model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(12)])
    for layer in model:
        nn.init.normal_(layer.weight)
    return model

tape = Tape()
with recording(Recorder(tape)), torch.device("meta"):
    other, model = build(), build()  # the other one is not needed; what follows from its draws is
memory = MappedMemory(Path("."), 12 * 2048 * 2048 * 4)
free = [memory.tensor(torch.float32, number * 2048 * 2048 * 4, 2048 * 2048) for number in range(12)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
give_values(model, tape, lambda tensor: free.pop().view(tensor.shape), memory.let_go)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_one_parameter_at_a_time_is_in_memory(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10  # KiB, of 192 MiB
    assert not list(Path(tmp_path).iterdir())
