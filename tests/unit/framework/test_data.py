"""The loader: input functions, prefetch, and how long training waits for its input."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.resuming import STEPS_AN_EPOCH, same_end, shuffled, train
from tests.fixtures.training import BATCH, Network, dataset, loader

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.events import RUN_EVENT
from cerebras_pytorch.data.position import EpochRecord, Feed, Position
from cerebras_pytorch.data.prefetch import PrefetchedFeed
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


class Numbers(torch.utils.data.IterableDataset):
    """A stream that goes on where it was, changed at random."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return torch.randn(1, 6, 6) + self.at, torch.tensor(self.at % 3)


class Restarted:
    """An iterable that begins anew, with a memory of how often it did."""

    def __init__(self, batches: int = 6) -> None:
        self.epochs, self.batches = 0, batches

    def __iter__(self):
        self.epochs += 1
        for number in range(self.batches):
            yield torch.randn(BATCH, 1, 6, 6) + self.epochs, torch.full((BATCH,), number % 3)


class Remembers(torch.utils.data.Sampler[int]):
    """Draws at random from what it has drawn before, in other epochs, too."""

    def __init__(self) -> None:
        self.last = 0

    def __len__(self):
        return 48

    def __iter__(self):
        for _ in range(48):
            self.last = (self.last + int(torch.randint(1, 48, ()))) % 48
            yield self.last


SOURCES = {
    "map": lambda: torch.utils.data.DataLoader(dataset(48), BATCH, shuffle=True),
    "stream": lambda: torch.utils.data.DataLoader(Numbers(), BATCH),
    "generator": lambda: (batch for batch in Restarted(batches=18)),
    "iterable": Restarted,
    "list": lambda: [(torch.full((BATCH, 1, 6, 6), float(number)), torch.ones(BATCH)) for number in range(6)],
}


def taken(source, prefetch_batches, epochs=3, past=None):
    """The batches of epochs, each of them but the last left after four, and of the last one four."""
    feed = Feed(source, 5, [], iter(source) if isinstance(source, Iterator) else None)
    feed = PrefetchedFeed(feed, prefetch_batches) if prefetch_batches else feed
    found = []
    for number in range(epochs):
        if past and number < past.last:
            feed.pass_by(number, past.epochs[number])
            continue
        batches = feed.epoch(number, past if past and number == past.last else None)
        found.append([images.sum().item().hex() for images, _ in islice(batches, 4)])
    feed.end()
    return found


@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("name", SOURCES)
def test_any_source_is_prefetched_and_epochs_may_be_left_early(name, ahead):
    assert taken(SOURCES[name](), ahead) == taken(SOURCES[name](), 0)
    assert not multiprocessing.active_children()


def test_a_sampler_with_a_memory_is_passed_by_as_it_was_drawn():
    """By as many batches, from the same seed."""

    def make():
        return torch.utils.data.DataLoader(dataset(48), BATCH, sampler=Remembers())

    whole = taken(make(), 0)
    left = [EpochRecord(batches=4, trained=True), EpochRecord(batches=3, trained=True)]
    assert taken(make(), 0, epochs=2, past=Position(left))[0][0] == whole[1][3]


@pytest.mark.parametrize("name", ["map", "stream", "iterable", "list"])
def test_any_source_is_prefetched_from_where_a_run_was_cut_off(name):
    whole = taken(SOURCES[name](), 0)
    left = [EpochRecord(batches=4, trained=True), EpochRecord(batches=3, trained=True)]
    after = taken(SOURCES[name](), 2, epochs=2, past=Position(left))
    assert after == taken(SOURCES[name](), 0, epochs=2, past=Position(left))
    assert after[0][0] == whole[1][3]


def test_tensors_of_any_kind_are_handed_over_as_they_are():
    batch = {
        "small": torch.arange(6).view(2, 3),
        "scalar": torch.tensor(2.5),
        "empty": torch.ones(0, 3),
        "format": torch.ones(3, dtype=torch.bfloat16),
        "turned": torch.arange(6).view(2, 3).t(),
        "expanded": torch.ones(()).expand(4, 4),
        "large": torch.randn(600, 600),
        "other": [torch.tensor([True, False]), "text", {"deep": torch.tensor([1j])}],
    }
    feed = PrefetchedFeed(Feed([batch], 0, [], None), 2)
    (found,) = feed.epoch(0)
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value)
            assert (found[name].dtype, found[name].stride()) == (value.dtype, value.stride())
    assert torch.equal(found["other"][2]["deep"], batch["other"][2]["deep"])
    found["small"] += 1  # a script may change its batch
    feed.end()


class MyError(Exception):
    def __init__(self, place: str, number: int) -> None:
        super().__init__(f"{place} {number}")
        self.number = number


class Fails(torch.utils.data.Dataset):
    """Fails at its fifth sample, in one of several ways."""

    def __init__(self, fail: Callable[[], object]) -> None:
        self.fail = fail

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            self.fail()  # here it fails
        return torch.ones(1, 6, 6), torch.tensor(1)


def raise_own() -> None:
    raise MyError("in the dataset", 7)


def raise_local() -> None:
    class Local(Exception):
        pass

    raise Local("nobody else knows me")


def failing(fail: Callable[[], object]) -> list[Any]:
    feed = PrefetchedFeed(Feed(torch.utils.data.DataLoader(Fails(fail), 2), 0, [], None), 2)
    try:
        return list(feed.epoch(0))
    finally:
        feed.end()
        assert not multiprocessing.active_children()


def test_an_exception_there_is_raised_here_with_its_place():
    with pytest.raises(FileNotFoundError, match="no such shard") as missing:
        failing(lambda: (_ for _ in ()).throw(FileNotFoundError("no such shard")))
    frames = traceback.extract_tb(missing.value.__traceback__)
    assert any(frame.filename == __file__ and "here it fails" in (frame.line or "") for frame in frames)
    with pytest.raises(MyError, match="in the dataset 7") as own:
        failing(raise_own)
    assert own.value.number == 7
    with pytest.raises(RuntimeError, match="Local in the process that prepares batches(.|\n)*nobody else knows me"):
        failing(raise_local)
    with pytest.raises(SystemExit, match="3"):
        failing(lambda: sys.exit(3))
    with pytest.raises(ReportedError, match="shard.h5: damaged") as told:
        failing(raise_reported)
    assert told.value.report.code is ErrorCode.DATA_INVALID


def raise_reported() -> None:
    raise ReportedError(ErrorReport(code=ErrorCode.DATA_INVALID, message="damaged", file="shard.h5"))


@pytest.mark.parametrize(
    ("fail", "how"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "signal SIGKILL"), (lambda: os._exit(4), "status 4")],
)
def test_a_process_that_ends_is_told(fail, how):
    with pytest.raises(ReportedError, match=f"prepares batches .prefetch_batches. ended with {how}") as told:
        failing(fail)
    assert "prefetch_batches: 0" in (told.value.report.advice or "")


def test_the_process_ends_with_the_one_that_trains(tmp_path):
    script = """
import os, sys, time, torch
from cerebras_pytorch.data.position import Feed
from cerebras_pytorch.data.prefetch import PrefetchedFeed
batches = [torch.ones(3)] * 100
feed = PrefetchedFeed(Feed(batches, 0, [], None), 2)
next(feed.epoch(0))
print(feed._process.pid, flush=True)
time.sleep(100)
"""
    trains = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert trains.stdout
    pid = int(trains.stdout.readline())
    os.kill(pid, 0)
    trains.kill()
    trains.wait()
    while Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.02)
    trains.stdout.close()


def test_to_come_back_to_a_place_is_no_waiting(tmp_path, monkeypatch):
    """An iterable is replayed to where the run was cut off: that is not counted."""
    waits: list[InputWait] = []
    monkeypatch.setattr(recorder, "InputWait", lambda: waits.append(InputWait()) or waits[-1])
    slow = lambda: SlowBeginning()  # noqa: E731
    train(tmp_path, epochs=1, data=slow, checkpoint_steps=1, cut_off_in=5)
    train(tmp_path, epochs=1, data=slow, autoload_last_checkpoint=True)
    assert waits[0].seconds > 0.3
    assert waits[1].seconds < 0.2


class SlowBeginning(Restarted):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number < 4:
                time.sleep(0.1)
            yield batch


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
