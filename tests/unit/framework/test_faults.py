"""Faults in a run by hand: the losses stay, the device's time does not; profiles show the steps as they were."""

import json

import pytest
import torch
from tests.fixtures.training import Network, loader
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.configuration_reader import parse_configuration
from cerebras_contract.errors import ReportedError
from cerebras_contract.events import RUN_EVENT
from cerebras_pytorch.training.profile import Profile


def run(folder, configuration="", profile=None):
    """Losses, device seconds by step, and the warnings."""
    runconfig = "runconfig: {target_device: CSX, log_steps: 1, execution_mode: weight_streaming}"
    (folder / "run.yaml").write_text(f"{runconfig}\n{configuration}")
    torch.manual_seed(0)
    losses = []
    with cbt.init_context(config=folder / "run.yaml") as context:
        model, criterion = Network(), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, optimizer, criterion, data)
        if profile:
            cbt.profile(*profile)
        for images, labels in data:
            optimizer.zero_grad()
            loss = criterion(compiled_model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        clock = context.session.compiled.clock
    events = [RUN_EVENT.validate_json(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
    at = {event.step: event.device_seconds for event in events if event.kind == "metric" and "loss" in event.values}
    return losses, at, [event.message for event in events if event.kind == "warning"], clock


FAULTS = """
faults:
  events:
    - {kind: slow_link, step: 2, steps: 2, factor: 100000}
    - {kind: stalled_input, step: 4, seconds: 0.25}
    - {kind: defects, step: 5, count: 400000}
"""


def test_faults_change_the_time_and_not_the_losses(run_folder):
    losses, _, warnings, clock = run(run_folder)
    assert not [message for message in warnings if "fault" in message]
    step = clock.plan.step_seconds
    faulty_losses, faulty_at, warnings, clock = run(run_folder, FAULTS)
    assert faulty_losses == losses
    took = [faulty_at[1], *(faulty_at[n] - faulty_at[n - 1] for n in range(2, 6))]
    assert took[0] == pytest.approx(step)
    assert took[1] == pytest.approx(took[2])
    assert took[1] > 1.01 * step
    assert took[3] == pytest.approx(step + 0.25)
    assert took[4] > step
    told = [message for message in warnings if message.startswith("fault")]
    assert told == [
        "fault at step 2: the link to the wafer is 100,000 times slower for 2 steps",
        "fault at step 4: the input stalls for 0.25 s of device time",
        "fault at step 5: 400,000 processing elements fail: 524 rows of the fabric are given up",
    ]
    assert clock.plan.fabric_rows == 994 - 524


def test_a_profile_shows_the_steps_as_they_were(run_folder, capsys):
    _, at, *_ = run(run_folder, FAULTS, profile=(3, 4))
    path = run_folder / "profile_3_4.json"
    lines = map(json.loads, (run_folder / "events.jsonl").read_text().splitlines())
    assert path.name in [line["path"] for line in lines if line["kind"] == "file"]
    assert f"Wrote the profile of steps 3 to 4: {path}" in capsys.readouterr().out
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["step"] for event in events} == {3, 4}
    assert at[2] * 1e6 <= min(event["ts"] for event in events) < at[3] * 1e6
    stalls = [event for event in events if event["name"] == "waiting for input"]
    assert [event["dur"] for event in stalls] == [pytest.approx(0.25e6)]
    tracks = [event for event in json.loads(path.read_text())["traceEvents"] if event["name"] == "thread_name"]
    assert {track["args"]["name"] for track in tracks} == {
        "weights in",
        "compute",
        "overhead",
        "gradients out",
        "input",
    }


def test_profile_steps_of_the_configuration_and_one_that_is_not_reached(run_folder):
    (run_folder / "kept").mkdir()
    _, _, warnings, _ = run(run_folder, profile=(4, 9, run_folder / "kept" / "mine.json"))
    assert "the profile of steps 4 to 9 ends with step 5, the last of this run" in warnings
    events = json.loads((run_folder / "kept" / "mine.json").read_text())["traceEvents"]
    assert {event["args"]["step"] for event in events if event["ph"] == "X"} == {4, 5}


def test_a_profile_of_no_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a first and a last step from 1 on, not of 5 to 3"):
        Profile(5, 3, tmp_path / "profile.json", None)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            "{kind: lose_sistem, step: 3}",
            r"faults.events.0.kind: should be 'lose_system'.* not 'lose_sistem' \(column 8\)",
        ),
        ("{kind: slow_link, step: 3}", "faults.events.0: slow_link needs factor"),
        ("{kind: lose_system}", "faults.events.0: say either step or mean_steps"),
        ("{kind: defects, step: 3, count: 4, factor: 2}", "faults.events.0: defects takes no factor"),
        ("{kind: defects, stepp: 3, count: 4}", "unknown key 'faults.events.0.stepp'"),
    ],
)
def test_a_fault_that_is_wrong_is_told_with_its_place(event, message):
    with pytest.raises(ReportedError, match=message) as caught:
        parse_configuration(f"faults:\n  events:\n    - {event}\n", "run.yaml")
    assert caught.value.report.line == 3
    if "stepp" in event:
        assert caught.value.report.advice == "Did you mean 'step'?"


def test_a_fault_is_sent_to_a_run_by_a_line_of_its_file(run_folder, capsys):
    """One without a step happens at the next; what is no fault is told and left out."""
    with cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(log_steps=1, target_device="CSX"))
        torch.manual_seed(0)
        model = Network()
        optimizer, criterion = torch.optim.Adam(model.parameters()), torch.nn.CrossEntropyLoss()
        batches = cbt.utils.data.DataLoader(loader())
        compiled = cbt.compile(model, optimizer, criterion, batches)
        cycles = []
        for step, batch in enumerate(batches, start=1):
            compiled.train_step(*batch)
            cycles.append(context.session.compiled.clock.plan.step_cycles)
            if step == 2:
                with (run_folder / "faults.jsonl").open("a") as file:
                    file.write('{"kind": "stalled_input", "seconds": 2}\n{"kind": "fire"}\n{"kind": "slow_li')
            if step == 3:
                with (run_folder / "faults.jsonl").open("a") as file:
                    file.write('nk", "factor": 100000, "step": 5}\n')
    sound = cycles[0]
    assert cycles[1] == cycles[3] == sound < min(cycles[2], cycles[4])
    printed = capsys.readouterr().out
    assert "fault at step 3: the input stalls for 2 s" in printed
    assert "a line of faults.jsonl is no fault and is left out" in printed
