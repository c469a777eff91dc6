"""Steps, the loader, checkpoints and settings of a run by hand."""

import json
import random
import sys

import numpy as np
import pytest
import torch
from tests.fixtures.training import BATCH, Network, dataset, loader, train
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.errors import ReportedError
from cerebras_contract.events import RUN_EVENT
from cerebras_pytorch.checkpoints import read_checkpoint, state_dict

pytestmark = pytest.mark.usefixtures("run_folder")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def checkpoints(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*"))


def test_the_last_ragged_batch_is_dropped_and_said_once(capsys):
    run = train(Network(), sgd, epochs=3, data=loader(samples=44))
    assert len(run.losses) == 15
    assert capsys.readouterr().out.count("dropped a batch of 4 samples") == 1


def test_max_steps_ends_the_loop_also_within_an_epoch():
    run = train(Network(), sgd, epochs=3, max_steps=7)
    assert len(run.losses) == 7
    assert run.context.session.step == 7


def test_checkpoints_are_saved_at_each_multiple_and_at_the_last_step(run_folder):
    train(Network(), sgd, epochs=2, checkpoint_steps=4)
    assert checkpoints(run_folder) == [4, 8, 10]


def test_the_last_step_is_saved_once_where_it_is_a_multiple(run_folder):
    train(Network(), sgd, epochs=2, checkpoint_steps=4, max_steps=8)
    assert checkpoints(run_folder) == [4, 8]
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    assert [(e.step, e.path) for e in events if e.kind == "checkpoint"] == [
        (4, "checkpoints/step_4"),
        (8, "checkpoints/step_8"),
    ]


def test_nothing_is_saved_unless_asked_for(run_folder):
    train(Network(), sgd)
    assert checkpoints(run_folder) == []


def test_a_checkpoint_is_a_plain_state_dict_of_the_bare_module(run_folder):
    model = Network()
    train(model, sgd, wrap=True, checkpoint_steps=5)
    loaded = state_dict(run_folder / "checkpoints" / "step_5")
    fresh = Network()
    fresh.load_state_dict(loaded)
    torch.testing.assert_close(fresh.state_dict(), model.state_dict())
    assert not [name for name in loaded if name.startswith("module.")]


def test_a_damaged_checkpoint_names_the_file(run_folder):
    train(Network(), sgd, checkpoint_steps=5)
    folder = run_folder / "checkpoints" / "step_5"
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ReportedError, match=r"model\.safetensors: differs from what was saved"):
        read_checkpoint(folder)
    file.unlink()
    with pytest.raises(ReportedError, match=r"model\.safetensors: missing"):
        read_checkpoint(folder)
    with pytest.raises(ReportedError, match=r"checkpoint\.json: no checkpoint here"):
        read_checkpoint(run_folder)


def test_looking_at_a_batch_consumes_neither_it_nor_random_numbers():
    torch.manual_seed(4)
    np.random.seed(4)
    random.seed(4)
    generator = torch.Generator().manual_seed(9)
    source = torch.utils.data.DataLoader(dataset(), BATCH, shuffle=True, generator=generator)
    wrapped = cbt.utils.data.DataLoader(source)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), generator.get_state()
    looked_at, _ = wrapped.first_batch()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]
    assert torch.equal(generator.get_state(), before[3])
    first, _ = next(iter(wrapped))
    assert torch.equal(first, looked_at)


def test_a_loader_that_cannot_begin_again_gives_the_batch_back():
    batches = list(loader())
    wrapped = cbt.utils.data.DataLoader(iter(batches))
    wrapped.first_batch()
    assert [labels.tolist() for _, labels in wrapped] == [labels.tolist() for _, labels in batches]


def test_the_length_of_a_training_loader_counts_full_batches():
    wrapped = cbt.utils.data.DataLoader(loader(samples=44))
    assert len(wrapped) == 6
    with cbt.init_context():
        model = Network()
        cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), wrapped)
        assert len(wrapped) == 5


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "yields no batch"),
        ([torch.zeros(2)] * 3, r"pair \(inputs, target\)"),
        ([(torch.zeros(2, 36), "label")], "target of a batch must be tensors"),
        ([((torch.zeros(2, 36), torch.zeros(3)), torch.zeros(2))], "same first dimension"),
    ],
)
def test_batches_that_cannot_be_trained_on_are_refused(batches, message):
    with cbt.init_context(), pytest.raises(cbt.CompileError, match=message):
        model = nn.Linear(36, 3)
        cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), cbt.utils.data.DataLoader(batches))


def test_wrong_arguments_of_compile_say_what_to_pass():
    model = Network()
    data = cbt.utils.data.DataLoader(loader())
    with cbt.init_context():
        with pytest.raises(cbt.CompileError, match=r"cbt\.utils\.data\.DataLoader\(loader\)"):
            cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), list(loader()))
        with pytest.raises(cbt.CompileError, match="nn.CrossEntropyLoss"):
            cbt.compile(model, sgd(model.parameters()), nn.functional.cross_entropy, data)
        with pytest.raises(cbt.CompileError, match=r"must return one number, not \[\[8\]\]"):
            cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(reduction="none"), data)


def test_compiling_twice_is_refused():
    with cbt.init_context(), pytest.raises(ReportedError, match="called a second time"):
        for _ in range(2):
            model = Network()
            data = cbt.utils.data.DataLoader(loader())
            cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), data)


def test_outside_of_a_context_the_way_in_is_named():
    with pytest.raises(RuntimeError, match="init_context"):
        cbt.compile(None, None, None, None)


def test_a_second_run_finds_the_artifact_and_another_batch_size_says_what_changed(run_folder, capsys):
    train(Network(), sgd)
    manifest = json.loads((run_folder / "compile" / "manifest.json").read_text())
    capsys.readouterr()
    train(Network(), lambda p: torch.optim.SGD(p, lr=0.7), log_steps=2)
    assert f"Found the artifact {manifest['artifact_key']}" in capsys.readouterr().out
    train(Network(), sgd, data=loader(batch_size=4))
    assert "Recompiling, because this changed: batch size 8 -> 4" in capsys.readouterr().out
    recompiled = json.loads((run_folder / "compile" / "manifest.json").read_text())
    assert recompiled["artifact_key"] != manifest["artifact_key"]


def test_a_damaged_artifact_is_compiled_again(run_folder):
    train(Network(), sgd)
    program = run_folder / "compile" / "forward.pt2"
    program.write_bytes(b"damaged")
    assert len(train(Network(), sgd).losses) == 5
    assert program.stat().st_size > 100


def test_metrics_belong_to_the_step_in_progress_or_to_the_last_one(run_folder):
    with cbt.init_context():
        model, criterion = Network(), nn.CrossEntropyLoss()
        optimizer = sgd(model.parameters())
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, optimizer, criterion, data)
        for x, y in data:
            criterion(compiled_model(x), y).backward()
            optimizer.step()
            cbt.log_metrics({"seen": torch.tensor(1.5)})
        cbt.log_metrics({"accuracy": 0.5})
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    metrics = [event for event in events if event.kind == "metric"]
    assert [event.step for event in metrics] == [1, 2, 3, 4, 5, 5]
    assert {event.values["seen"] for event in metrics[:5]} == {1.5}
    assert metrics[-1].values == {"accuracy": 0.5}


def test_params_are_the_sections_of_run_yaml_and_empty_without_it(run_folder):
    with cbt.init_context() as context:
        assert context.params == {}
        assert context.params["model"].get("width", 3) == 3
    (run_folder / "run.yaml").write_text("model: {width: 8}\nrunconfig: {max_steps: 2}\n")
    with cbt.init_context(config="run.yaml") as context:
        context.set_run_config(cbt.utils.config.RunConfig(max_steps=9, log_steps=3))
        assert context.params == {"model": {"width": 8}, "runconfig": {"max_steps": 2}}
        assert (context.settings.max_steps, context.settings.log_steps) == (2, 3)  # the file is stronger


def test_a_wrong_setting_in_the_script_is_refused_where_it_is_made():
    config = cbt.utils.config.RunConfig()
    config.max_steps = 3
    with pytest.raises(ValueError, match="max_stepz"):
        config.max_stepz = 3
    with pytest.raises(ValueError, match="max_steps"):
        config.max_steps = "many"
    with pytest.raises(ReportedError, match="there is no system 'cs-9'"), cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(system="cs-9"))


def test_the_last_step_is_reported_also_where_it_is_no_multiple_of_log_steps(run_folder):
    train(Network(), sgd, log_steps=2)
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    assert [event.step for event in events if event.kind == "progress"] == [2, 4, 5]


def test_a_changed_run_yaml_or_attribute_is_compiled_anew(run_folder, capsys):
    class Heads(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.head, self.factor = nn.Linear(36, 3), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1)) * self.factor

    def run(factor: float, width: int) -> str:
        (run_folder / "run.yaml").write_text(f"model: {{width: {width}}}\n")
        with cbt.init_context(config="run.yaml"):
            model = Heads(factor)
            data = cbt.utils.data.DataLoader(loader())
            cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), data)
        return capsys.readouterr().out

    run(1.0, 1)
    assert "nothing changed" in run(1.0, 1)
    assert "because this changed: configuration" in run(1.0, 2)
    assert "because this changed: model" in run(2.0, 2)


def test_a_stream_gives_the_batch_back_that_was_looked_at():
    class Stream(torch.utils.data.IterableDataset):
        def __init__(self) -> None:
            self.numbers = iter(range(100))

        def __iter__(self):
            return self.numbers

    wrapped = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(Stream(), batch_size=10))
    wrapped.first_batch()
    assert [int(batch[0]) for batch in wrapped] == list(range(0, 100, 10))


def test_a_loop_without_end_after_max_steps_is_stopped():
    with cbt.init_context() as context, pytest.raises(RuntimeError, match="although max_steps"):
        context.set_run_config(cbt.utils.config.RunConfig(max_steps=3))
        model, criterion = Network(), nn.CrossEntropyLoss()
        optimizer = sgd(model.parameters())
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, optimizer, criterion, data)
        while True:
            for x, y in data:
                criterion(compiled_model(x), y).backward()
                optimizer.step()


@pytest.mark.parametrize("status", [None, 0])
def test_a_script_that_says_it_is_done_keeps_its_last_step(run_folder, status):
    with pytest.raises(SystemExit), cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(checkpoint_steps=100))
        model, criterion = Network(), nn.CrossEntropyLoss()
        optimizer = sgd(model.parameters())
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, optimizer, criterion, data)
        for x, y in data:
            criterion(compiled_model(x), y).backward()
            optimizer.step()
            sys.exit(status)
    assert checkpoints(run_folder) == [1]


def test_a_failed_run_leaves_its_own_result_and_not_that_of_an_earlier_one(run_folder):
    train(Network(), sgd)
    assert (run_folder / "result.json").is_file()
    with pytest.raises(ZeroDivisionError), cbt.init_context():
        1 / 0  # noqa: B018
    result = json.loads((run_folder / "result.json").read_text())
    assert (result["status"], result["error"]["code"]) == ("failed", "script.raised")


def test_a_metric_that_is_no_number_is_named():
    with cbt.init_context():
        with pytest.raises(RuntimeError, match="after compile"):
            cbt.log_metrics({"early": 1})
        model = Network()
        data = cbt.utils.data.DataLoader(loader())
        cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), data)
        with pytest.raises(TypeError, match="'accuracy' is not one number"):
            cbt.log_metrics({"accuracy": torch.zeros(2)})


def test_inputs_by_name_are_refused_with_what_to_do():
    with cbt.init_context(), pytest.raises(ReportedError, match=r"in order, not by name \(x\)"):
        model = Network()
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), data)
        compiled_model(x=torch.zeros(BATCH, 1, 6, 6))


def test_a_folder_in_the_place_of_a_checkpoint_is_kept(run_folder):
    taken = run_folder / "checkpoints" / "step_5"
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("precious")
    with pytest.raises(ReportedError, match="is no checkpoint, so it is not replaced"):
        train(Network(), sgd, checkpoint_steps=5)
    assert (taken / "notes.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("word", "mode"),
    [("weight_streaming", "weight streaming"), ("pipelined", "pipelined"), ("data_streaming", "pipelined")],
)
def test_the_execution_mode_is_what_the_script_says(word, mode, capsys):
    train(Network(), sgd, max_steps=1, execution_mode=word)
    printed = capsys.readouterr().out
    assert f"Mode {mode}: it was asked for" in printed
    assert ("data_streaming is taken as pipelined" in printed) == (word == "data_streaming")


def test_the_micro_batches_that_were_explored_are_in_the_report(run_folder):
    train(Network(), sgd, max_steps=1, execution_mode="weight_streaming", micro_batch_size="explore")
    report = json.loads((run_folder / "compile" / "report.json").read_text())
    assert [candidate["micro_batch"] for candidate in report["candidates"]] == [8, 4, 2, 1]
    assert [candidate["chosen"] for candidate in report["candidates"]].count(True) == 1


def test_a_loop_that_does_not_ask_the_loader_is_told_once(run_folder, capsys):
    with cbt.init_context() as context:
        model, criterion = Network(), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = list(loader())
        compiled_model = cbt.compile(model, optimizer, criterion, cbt.utils.data.DataLoader(batches))
        for images, labels in batches:
            criterion(compiled_model(images), labels).backward()
            optimizer.step()
    assert context.session.step == 1
    assert capsys.readouterr().out.count("iterate the loader that was given to compile (said once)") == 1
