"""Training in float32 against eager PyTorch, and with a loss scale against torch.amp.GradScaler."""

import copy
import math

import pytest
import torch
from tests.fixtures.rounded import Convolutions, Rules
from tests.fixtures.training import Network, loader, train, train_eagerly
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.artifacts import ComputeFormat, PrecisionSpec
from cerebras_contract.configuration_reader import parse_configuration
from cerebras_contract.events import RUN_EVENT
from cerebras_pytorch.amp import MixedPrecision

EPOCHS = 10  # of 5 steps
MARGIN = 2.0

BITWISE = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.001),
}
# These are traced in another form than eager runs, the one for tensors: what it adds up it adds up in another order.
CLOSE = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.001),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.001),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.001),
}


@pytest.mark.parametrize("name", BITWISE)
def test_fifty_steps_in_float32_are_bitwise_eager(run_folder, name):
    torch.manual_seed(0)
    model = Network()
    eager = copy.deepcopy(model)
    assert train(model, BITWISE[name], epochs=EPOCHS).losses == train_eagerly(eager, BITWISE[name], epochs=EPOCHS)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters(), strict=True))


@pytest.mark.parametrize("name", CLOSE)
def test_fifty_steps_drift_no_further_than_a_start_one_ulp_away(run_folder, name):
    torch.manual_seed(0)
    model = Network()
    eager, beside = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in beside.parameters():
            parameter.copy_(torch.nextafter(parameter, torch.tensor(math.inf)))
    losses = train(model, CLOSE[name], epochs=EPOCHS).losses
    expected = train_eagerly(eager, CLOSE[name], epochs=EPOCHS)
    one_ulp_away = train_eagerly(beside, CLOSE[name], epochs=EPOCHS)
    allowed, drift = _distance(one_ulp_away, expected), _distance(losses, expected)
    assert 0 < allowed < 1e-5
    assert drift <= MARGIN * allowed
    weights = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, eager, beside)]
    assert (weights[0] - weights[1]).norm() <= MARGIN * (weights[2] - weights[1]).norm()


def _distance(losses: list[float], others: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(losses, others, strict=True))


INIT_SCALE, STEPS_PER_INCREASE = 2.0**24, 3


def train_with_grad_scaler(model: Convolutions) -> tuple[list[float], list[float], int]:
    """The loop that a user of PyTorch writes, over the model with its rounding written out. Losses, scales after each
    step, and how many steps were skipped."""
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, growth_interval=STEPS_PER_INCREASE)
    losses, scales, skipped = [], [], 0
    for _ in range(6):
        for images, labels in loader():
            optimizer.zero_grad()
            loss = criterion(model.written_out(Rules("float16", 1), images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            skipped += scaler.get_scale() < before
            losses.append(loss.item())
            scales.append(scaler.get_scale())
    return losses, scales, skipped


def test_a_dynamic_loss_scale_trains_as_with_torch_grad_scaler(run_folder, capsys):
    torch.manual_seed(0)
    model = Convolutions()
    eager = copy.deepcopy(model)
    precision = MixedPrecision(torch.float16, "dynamic", init_scale=INIT_SCALE, steps_per_increase=STEPS_PER_INCREASE)
    run = train(model, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), epochs=6, mixed_precision=precision)
    losses, scales, skipped = train_with_grad_scaler(eager)
    assert 3 < skipped < 20
    assert run.losses == losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters(), strict=True))

    printed = capsys.readouterr().out
    assert printed.count("gradients overflowed") == 1
    assert f"{skipped} skipped for overflow, last loss scale {scales[-1]:g}" in printed
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    metrics = {event.step: event.values for event in events if event.kind == "metric"}
    changes = {step: values["loss_scale"] for step, values in metrics.items() if "loss_scale" in values}
    before = [INIT_SCALE, *scales]
    assert changes == {step: new for step, (old, new) in enumerate(zip(before, scales, strict=False), 1) if new != old}
    assert max(values.get("skipped_steps", 0) for values in metrics.values()) == skipped


def test_a_skipped_step_leaves_weights_state_schedule_and_hooks_as_torch_does(run_folder):
    torch.manual_seed(0)
    model = Convolutions()
    calls = []
    optimizers = []

    def make_optimizer(parameters):
        optimizers.append(torch.optim.Adam(parameters, lr=0.01))
        optimizers[0].register_step_pre_hook(lambda *_: calls.append("before"))
        optimizers[0].register_step_post_hook(lambda *_: calls.append("after"))
        return optimizers[0]

    precision = MixedPrecision(cbt.cbfloat16, "dynamic", init_scale=2.0**45, steps_per_increase=1000)
    run = train(
        model,
        make_optimizer,
        epochs=6,
        mixed_precision=precision,
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5),
    )
    scaler = run.context.session.compiled.update.loss_scaler
    made = 30 - scaler.skipped_steps
    assert 0 < made < 30
    assert scaler.scale == 2.0 ** (45 - scaler.skipped_steps)
    assert calls == ["before", "after"] * made
    optimizer = optimizers[0]
    assert {float(state["step"]) for state in optimizer.state.values()} == {made}
    assert optimizer.param_groups[0]["lr"] == 0.01 / 8  # a scheduler is the script's own: it was stepped 30 times


def test_a_new_loss_scale_needs_no_compile_and_is_taken(run_folder, capsys):
    def run(scale):
        torch.manual_seed(0)
        precision = MixedPrecision(torch.float16, scale)
        return train(Convolutions(), BITWISE["SGD"], mixed_precision=precision, epochs=1).losses

    first = run(1024.0)
    capsys.readouterr()
    assert all(math.isfinite(loss) for loss in run(2.0**40))
    printed = capsys.readouterr().out
    assert "nothing changed, not compiling" in printed
    assert "5 skipped for overflow" in printed
    assert run(1024.0) == first


def test_bfloat16_has_the_range_of_float32_so_that_a_step_is_skipped_only_with_a_scale():
    assert not ComputeFormat.BFLOAT16.layout.overflows_early
    assert ComputeFormat.CBFLOAT16.layout.overflows_early
    assert MixedPrecision(torch.bfloat16, 2.0).spec().scales_loss
    assert not MixedPrecision(torch.bfloat16).spec().scales_loss


@pytest.mark.parametrize("dtype", [cbt.cbfloat16, "cbfloat16", cbt.amp.cbfloat16])
def test_cbfloat16_goes_by_its_name(dtype):
    assert MixedPrecision(dtype).spec() == PrecisionSpec(compute_dtype="cbfloat16")


def test_the_level_is_what_run_yaml_says_then_the_script_then_one():
    read = parse_configuration("runconfig:\n  precision_opt_level: 2\n", "run.yaml").runconfig.precision_opt_level
    assert MixedPrecision(torch.float16, precision_opt_level=0).spec(read).precision_opt_level == 2
    assert MixedPrecision(torch.float16, precision_opt_level=0).spec().precision_opt_level == 0
    assert MixedPrecision(torch.float16).spec().precision_opt_level == 1
    assert MixedPrecision(torch.float32).spec(read) == PrecisionSpec()


@pytest.mark.parametrize(
    "wrong",
    [
        {"param_dtype": torch.int8},
        {"param_dtype": "float8"},
        {"loss_scale": "static"},
        {"loss_scale": 0},
        {"loss_scale": math.inf},
        {"loss_scale": 1e39},
        {"loss_scale": True},
        {"precision_opt_level": 3},
        {"init_scale": -1.0},
        {"steps_per_increase": 0},
    ],
)
def test_what_makes_no_sense_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MixedPrecision(**wrong)
