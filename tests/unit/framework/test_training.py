"""Training from the artifact computes what PyTorch computes."""

import copy
import math

import pytest
import torch
from tests.fixtures.training import BATCH, Network, dataset, loader, train, train_eagerly
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_contract.events import RUN_EVENT
from cerebras_pytorch.amp import MixedPrecision
from cerebras_pytorch.checkpoints import state_dict

pytestmark = pytest.mark.usefixtures("run_folder")

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)  # the others are in test_optimizers
def test_losses_and_weights_are_those_of_eager_pytorch(name):
    torch.manual_seed(0)
    model = Network()
    eager = copy.deepcopy(model)
    run = train(model, OPTIMIZERS[name], epochs=2)
    expected = train_eagerly(eager, OPTIMIZERS[name], epochs=2)
    assert len(run.losses) == 10
    assert run.losses == pytest.approx(expected, rel=1e-4)
    for ours, theirs in zip(model.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_sgd_in_single_precision_is_bitwise_eager():
    torch.manual_seed(0)
    model = Network()
    eager = copy.deepcopy(model)
    make_optimizer = OPTIMIZERS["SGD"]
    assert train(model, make_optimizer).losses == train_eagerly(eager, make_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), eager.state_dict().values(), strict=True))


def test_a_learning_rate_schedule_is_followed_without_another_compile(run_folder):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    torch.manual_seed(0)
    model = Network()
    eager = copy.deepcopy(model)
    run = train(model, OPTIMIZERS["SGD"], schedule=schedule)
    assert run.losses == train_eagerly(eager, OPTIMIZERS["SGD"], schedule=schedule)


class TiedTwoHeaded(nn.Module):
    """Tied weights, a frozen and an unused parameter, a constant, integer inputs, outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.mix.bias.requires_grad_(False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Linear(2, 2)
        self.register_buffer("mask", torch.tril(torch.ones(5, 5)), persistent=False)

    def forward(self, tokens):
        hidden = self.mask @ self.mix(self.embedding(tokens)) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])[:, None]
        return {"logits": self.head(hidden), "next": tokens + 1}


class TokenLoss(nn.Module):
    def forward(self, outputs, target):
        return nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), target.flatten())


def test_tied_frozen_unused_and_integer_parts_train_as_in_eager():
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 10, (16, 5), generator=generator)
    batches = list(zip(tokens.split(4), tokens.split(4), strict=True))
    torch.manual_seed(0)
    model = TiedTwoHeaded()
    eager = copy.deepcopy(model)

    def loop(trained, criterion, optimizer, data):
        losses = []
        for x, y in data:
            optimizer.zero_grad()
            loss = criterion(trained(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    with cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(checkpoint_steps=100))
        optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.5), TokenLoss()
        data = cbt.utils.data.DataLoader(batches)
        compiled_model = cbt.compile(model, optimizer, criterion, data)
        losses = loop(compiled_model, criterion, optimizer, data)
    expected = loop(eager, TokenLoss(), torch.optim.SGD(eager.parameters(), lr=0.5), batches)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert model.head.weight is model.embedding.weight
    torch.testing.assert_close(model.state_dict(), eager.state_dict())
    TiedTwoHeaded().load_state_dict(state_dict("checkpoints/step_4"))


def test_gradients_can_be_clipped_and_accumulated():
    torch.manual_seed(0)
    model = Network()
    eager = copy.deepcopy(model)

    def loop(trained, outer, data):
        optimizer, criterion = torch.optim.SGD(outer.parameters(), lr=0.1), nn.CrossEntropyLoss()
        if trained is None:
            data = cbt.utils.data.DataLoader(data)
            trained = cbt.compile(outer, optimizer, criterion, data)
        for number, (x, y) in enumerate(data):
            criterion(trained(x), y).backward()
            if number % 2 == 1:
                nn.utils.clip_grad_norm_(outer.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()

    with cbt.init_context() as context:
        loop(None, model, loader(32))
    loop(eager, eager, loader(32))
    assert context.session.step == 2
    torch.testing.assert_close(model.state_dict(), eager.state_dict())


def test_half_precision_trains_and_scales_the_loss_out_again():
    make_optimizer = OPTIMIZERS["Adam"]
    torch.manual_seed(0)
    model = Network()
    plain, scaled = copy.deepcopy(model), copy.deepcopy(model)
    single = train(model, make_optimizer, epochs=3)
    half = train(plain, make_optimizer, epochs=3, mixed_precision=MixedPrecision(torch.float16))
    with_scale = train(scaled, make_optimizer, epochs=3, mixed_precision=MixedPrecision(torch.float16, 1024.0))
    assert half.losses == pytest.approx(single.losses, rel=0.02)
    assert half.losses != single.losses
    assert with_scale.losses == pytest.approx(half.losses, rel=0.02)


def test_a_step_whose_gradients_overflow_is_skipped_and_said(capsys):
    torch.manual_seed(0)
    model = Network()
    before = copy.deepcopy(list(model.parameters()))
    run = train(model, OPTIMIZERS["SGD"], mixed_precision=MixedPrecision(torch.float16, 1e30))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(math.isfinite(loss) for loss in run.losses)
    printed = capsys.readouterr().out
    assert printed.count("gradients overflowed") == 1
    assert "5 skipped for overflow" in printed


@pytest.mark.parametrize(("dtype", "scale"), [(torch.int8, 1.0), (torch.float16, 0), (torch.float16, "static")])
def test_a_precision_that_makes_no_sense_is_refused(dtype, scale):
    with pytest.raises(ValueError, match=r"param_dtype|loss_scale"):
        MixedPrecision(dtype, scale)


def test_evaluation_returns_only_real_rows_as_eager_does():
    torch.manual_seed(0)
    model = Network(dropout=0.5)
    images, _ = dataset(21).tensors
    with cbt.init_context():
        optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, optimizer, criterion, data)
        for x, y in data:
            criterion(compiled_model(x), y).backward()
            optimizer.step()
        model.eval()
        for rows in (1, BATCH - 1, BATCH, 21):
            output = compiled_model(images[:rows])
            assert output.shape == (rows, 3)
            torch.testing.assert_close(output, model(images[:rows]))
        model.train()
        assert not torch.equal(compiled_model(images[:BATCH]), compiled_model(images[:BATCH]))  # dropout is back


def test_a_batch_of_another_shape_is_a_clear_error():
    with cbt.init_context(), pytest.raises(ReportedError) as caught:
        model = Network()
        criterion = nn.CrossEntropyLoss()
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion, data)
        compiled_model(torch.zeros(BATCH, 1, 7, 7))
    assert caught.value.report.code is ErrorCode.RUN_ARTIFACT_MISMATCH
    assert "float32[8, 1, 6, 6]" in caught.value.report.message
    assert "float32[8, 1, 7, 7]" in caught.value.report.message


def test_a_changed_hyperparameter_is_a_clear_error():
    class ChangesBetas:
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self):
            self.optimizer.param_groups[0]["betas"] = (0.5, 0.999)

    with pytest.raises(ReportedError, match="betas of Adam changed") as caught:
        train(Network(), lambda p: torch.optim.Adam(p), schedule=ChangesBetas)
    assert caught.value.report.code is ErrorCode.RUN_HYPERPARAMETER_CHANGED


def test_dropout_is_not_moved_by_what_else_draws_random_numbers():
    def losses(draws: int) -> list[float]:
        torch.manual_seed(0)
        model = Network(dropout=0.5)
        images, labels = dataset().tensors

        def batches():
            for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
                torch.rand(draws)
                yield x, y

        return train(model, OPTIMIZERS["SGD"], data=cbt.utils.data.DataLoader(lambda: list(batches()))).losses

    assert losses(1) == losses(1000)


def test_every_step_leaves_its_metrics(run_folder):
    run = train(Network(), OPTIMIZERS["SGD"], epochs=1, target_device="CSX")
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    metrics = [event for event in events if event.kind == "metric" and "loss" in event.values]
    assert [(event.step, event.values["loss"]) for event in metrics] == list(enumerate(run.losses, start=1))
    times = [event.device_seconds for event in metrics]
    assert times == pytest.approx([times[0] * step for step in range(1, 6)])


def test_the_instruments_are_read_every_log_steps(run_folder):
    train(Network(), OPTIMIZERS["SGD"], epochs=1, target_device="CSX", log_steps=2)
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    readings = [event for event in events if event.kind == "metric" and "device/power_watts" in event.values]
    assert [event.step for event in readings] == [2, 4, 5]
    temperatures = [event.values["device/temperature_celsius"] for event in readings]
    assert temperatures == sorted(temperatures)


def test_on_target_cpu_there_is_no_device_time(run_folder):
    train(Network(), OPTIMIZERS["SGD"])
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    metrics = [event for event in events if event.kind == "metric"]
    assert {event.device_seconds for event in metrics} == {None}
    assert {name for event in metrics for name in event.values} == {"loss"}


def compiled_loop(model, optimizer, data, *, before_step=None, **settings):
    """A loop with a hook before each step; returns the context."""
    with cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(**settings))
        criterion, batches = nn.CrossEntropyLoss(), cbt.utils.data.DataLoader(data)
        compiled_model = cbt.compile(model, optimizer, criterion, batches)
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            criterion(compiled_model(x), y).backward()
            if before_step:
                before_step(number)
            optimizer.step()
    return context


def test_a_frozen_batch_norm_stays_as_it_is_and_a_change_of_mode_is_refused():
    torch.manual_seed(0)
    model = Network()
    model.norm.eval()
    eager = copy.deepcopy(model)
    compiled_loop(model, torch.optim.SGD(model.parameters(), lr=0.1), loader())
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for x, y in loader():
        optimizer.zero_grad()
        nn.functional.cross_entropy(eager(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), eager.state_dict())
    assert torch.equal(model.norm.running_mean, torch.zeros(4))
    with pytest.raises(ReportedError, match="norm changed between train and eval mode"):
        compiled_loop(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loader(), before_step=lambda _number: model.train()
        )


def test_a_parameter_frozen_after_compile_stays_and_one_unfrozen_is_refused():
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    kept = []

    def freeze(number):
        if number == 2:
            kept.append(model.head.weight.detach().clone())
        if number >= 2:
            model.head.weight.grad = None

    compiled_loop(model, optimizer, loader(), before_step=freeze)
    assert torch.equal(model.head.weight, kept[0])

    other = Network()
    other.head.bias.requires_grad_(False)

    def unfreeze(_number):
        other.head.bias.requires_grad_(True).grad = torch.ones(3)

    with pytest.raises(ReportedError, match=r"a parameter of shape \[3\] has a gradient, but none when"):
        compiled_loop(other, torch.optim.SGD(other.parameters(), lr=0.1), loader(), before_step=unfreeze)


def test_hooks_of_the_optimizer_are_called_and_new_groups_refused():
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    compiled_loop(model, optimizer, loader())
    assert calls == ["before", "after"] * 5

    def add_group(_number):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

    with pytest.raises(ReportedError, match="parameter groups of SGD changed"):
        compiled_loop(model, optimizer, loader(), before_step=add_group)


def test_device_time_counts_batches_not_updates():
    def device_seconds(batches_an_update):
        torch.manual_seed(0)
        model = Network()
        with cbt.init_context() as context:
            optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
            data = cbt.utils.data.DataLoader(loader(32))
            compiled_model = cbt.compile(model, optimizer, criterion, data)
            for number, (x, y) in enumerate(data, start=1):
                criterion(compiled_model(x), y).backward()
                if number % batches_an_update == 0:
                    optimizer.step()
        return context.session.recorder._clock.seconds

    assert device_seconds(1) == pytest.approx(device_seconds(4))


def test_the_users_parts_are_their_own_again_after_the_context():
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # puts a wrapper around step
    wrapped = optimizer.step
    criterion, data = nn.CrossEntropyLoss(), cbt.utils.data.DataLoader(loader(samples=44))
    with cbt.init_context():
        cbt.compile(model, optimizer, criterion, data)
        assert optimizer.step is not wrapped
    assert optimizer.step is wrapped
    assert "forward" not in vars(criterion)
    assert len(list(data)) == 6


def test_a_loop_that_calls_another_loss_is_told_so(capsys):
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cbt.init_context():
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, optimizer, nn.CrossEntropyLoss(), data)
        for x, y in data:
            nn.functional.cross_entropy(compiled_model(x), y).backward()
            optimizer.step()
    assert capsys.readouterr().out.count("no loss was seen") == 1


def test_a_loss_that_is_not_finite_is_said_once(capsys):
    train(Network(), lambda p: torch.optim.SGD(p, lr=1e30), on_nan="warn")
    assert capsys.readouterr().out.count("the loss of step") == 1
