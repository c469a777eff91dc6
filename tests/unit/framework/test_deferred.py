"""A model built on the meta device gets, bit for bit, the values that it would have on the CPU."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.fixtures import zoo
from tests.fixtures.deferred import META, assert_as_on_the_cpu, layer, on, on_the_cpu
from tests.fixtures.training import Network, train
from torch import nn

from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_pytorch.deferred.give import give_values
from cerebras_pytorch.deferred.needed import needed_for
from cerebras_pytorch.deferred.record import Recorder, recording
from cerebras_pytorch.deferred.tape import Part, Tape


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


def test_draws_into_what_was_not_recorded_are_no_obstacle():
    outside, tape = nn.Linear(3, 3, device="meta"), Tape()
    torch.manual_seed(7)
    expected = torch.rand(3), torch.randn(20), torch.rand(3)
    torch.manual_seed(7)
    with recording(Recorder(tape)):
        with META:
            outside.weight.data.view(-1)[:3].uniform_()
            model = nn.ParameterList([nn.Parameter(torch.randn(20))])
        assert torch.equal(torch.rand(3), expected[2])
    give_values(model, tape, on_the_cpu, lambda _: None)
    assert torch.equal(model[0].detach(), expected[1])


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
    with recording(Recorder(Tape())):
        thread = threading.Thread(target=on(layer), args=["meta"])
        thread.start()
        thread.join()
        assert "is_meta" not in vars(torch.Tensor)
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


def test_what_is_read_while_it_is_written_is_kept():
    def make():
        model = layer()
        model.weight.data.fill_(model.weight.data[3, 2])
        return model

    assert_as_on_the_cpu(on(make))


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "fills"),
    [
        ((2, 3), (3, 1), 0, True),
        ((3, 2), (1, 3), 0, True),
        ((2, 1, 3), (3, 7, 1), 0, True),
        ((2, 3), (1, 1), 0, False),
        ((2, 2), (3, 1), 0, False),
        ((5,), (1,), 1, False),
    ],
)
def test_a_part_that_is_a_whole_storage(shape, strides, offset, fills):
    assert Part(0, torch.float32, shape, strides, offset).fills(24) is fills


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
