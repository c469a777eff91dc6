"""The loader: input functions, prefetch, and how long training waits for its input."""

import multiprocessing

import pytest
import torch
from tests.fixtures.resuming import STEPS_AN_EPOCH, same_end, shuffled, train
from tests.fixtures.training import BATCH, Network, loader

import cerebras_pytorch as cbt
from cerebras_contract.events import RUN_EVENT
from cerebras_pytorch.training import recorder
from cerebras_pytorch.training.input_wait import InputWait


def test_an_input_function_is_called_with_its_arguments():
    def get_train_dataloader(params, batch_size):
        return loader(samples=params["samples"], batch_size=batch_size)

    made = cbt.utils.data.DataLoader(get_train_dataloader, {"samples": 12}, batch_size=4)
    assert [len(labels) for _, labels in made] == [4, 4, 4]

    def get_nothing(params):
        return None

    with pytest.raises(TypeError, match="not the NoneType that get_nothing returned"):
        cbt.utils.data.DataLoader(get_nothing, {})
    with pytest.raises(TypeError, match="not int"):
        cbt.utils.data.DataLoader(3)


def test_prefetched_batches_are_those_that_would_be_drawn_here(tmp_path):
    """Shuffled, changed at random, cut off and gone on with."""
    here = train(tmp_path / "here", epochs=2)
    assert not multiprocessing.active_children()
    beside = train(tmp_path / "beside", epochs=2, prefetch_batches=2)
    assert beside.lines == here.lines
    assert same_end(beside, here)
    assert len(beside.loaded) == BATCH  # the first batch, for the compile; the others are loaded by another process
    before = train(tmp_path / "cut", epochs=2, prefetch_batches=3, checkpoint_steps=1, cut_off_in=STEPS_AN_EPOCH + 2)
    after = train(tmp_path / "cut", epochs=2, prefetch_batches=3, autoload_last_checkpoint=True)
    assert before.lines + after.lines == here.lines
    assert not multiprocessing.active_children()


def test_a_loader_with_workers_of_its_own_is_left_as_it_is(tmp_path):
    own = train(tmp_path / "own", epochs=1, data=lambda: shuffled(workers=2))
    with_prefetch = train(tmp_path / "more", epochs=1, prefetch_batches=2, data=lambda: shuffled(workers=2))
    assert with_prefetch.lines == own.lines


class Clock:
    """Time that passes where a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_waiting_is_measured_against_all_of_the_time():
    clock = Clock()
    wait = InputWait(clock)
    for _ in range(20):
        with wait:
            clock.seconds += 0.03
        clock.seconds += 0.01
        wait.steps += 1
    assert "the last 20 steps waited 30.0 ms for the loader and took 10.0 ms else" in (wait.bottleneck() or "")
    assert wait.look() == pytest.approx(0.75)
    assert str(wait) == "0.6 s, 75% of the time"
    for _ in range(20):
        with wait:
            clock.seconds += 0.001
        clock.seconds += 0.01
        wait.steps += 1
    assert wait.bottleneck() is None
    assert wait.look() == pytest.approx(1 / 11)


def test_a_few_steps_say_nothing():
    clock = Clock()
    wait = InputWait(clock)
    for _ in range(5):
        with wait:
            clock.seconds += 1.0
        wait.steps += 1
    assert wait.bottleneck() is None


def test_a_slow_loader_is_told_once_with_its_numbers(run_folder, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(recorder, "InputWait", lambda: InputWait(clock))

    class Slow(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.plain = loader(samples=320).dataset

        def __len__(self) -> int:
            return len(self.plain)

        def __getitem__(self, number: int):
            clock.seconds += 0.002
            return self.plain[number]

    with cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(log_steps=15))
        model, criterion = Network(), torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(Slow(), 8))
        compiled = cbt.compile(model, optimizer, criterion, data)
        for images, labels in data:
            criterion(compiled(images), labels).backward()
            optimizer.step()
            clock.seconds += 0.004
    printed = capsys.readouterr().out
    assert printed.count("the input is the bottleneck: the last 15 steps waited 16.0 ms") == 1
    assert "Waited for input: 0.6 s, 80% of the time" in printed
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    shares = [event.input_wait_share for event in events if event.kind == "progress"]
    assert shares[:2] == pytest.approx([0.8, 0.8], abs=0.02)
