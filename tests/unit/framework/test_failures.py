"""A run that goes wrong says so: what is not finite, and where that began."""

import json
import math
import resource
import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.fixtures.training import BATCH, Network, loader, train
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.events import RUN_EVENT, WarningEvent
from cerebras_contract.run_directory import RunDirectory
from cerebras_pytorch.events import EventWriter
from cerebras_pytorch.process import Process
from cerebras_pytorch.training import session, watch
from cerebras_wafer.errors import ArtifactMismatch
from cerebras_wafer.simulator.nonfinite import first_non_finite

pytestmark = pytest.mark.usefixtures("run_folder")

MASK = -math.inf


class Logarithm(nn.Module):
    """Its logarithm is of a negative number where the input is large; an infinite mask is none of its faults."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(36, 3)
        self.inner = Inner()

    def forward(self, x):
        x = self.first(x.flatten(1))
        masked = x.masked_fill(x > 1e6, MASK)
        return self.inner(x) + torch.softmax(masked, 1)


class Inner(nn.Module):
    def forward(self, x):
        return torch.log(1e3 - x.abs())  # here


class Root(nn.Module):
    """Its value is finite at zero, and its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x):
        return torch.sqrt(self.layer(x.flatten(1)).abs() * 0)  # root


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(f"# {mark}"))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def batches(count: int, factor_of_last: float) -> list:
    images = [images for images, _ in loader(samples=count * BATCH)]
    images[-1] = images[-1] * factor_of_last
    return [(one, torch.zeros(BATCH, dtype=torch.long)) for one in images]


def fails(model: nn.Module, data: object, **settings: object) -> ErrorReport:
    with pytest.raises(ReportedError) as caught:
        train(model, sgd, data=data, **settings)
    return caught.value.report


def test_a_loss_that_is_not_finite_ends_the_run_before_anything_of_it_is_saved(run_folder):
    report = fails(Network(), batches(4, math.nan), checkpoint_steps=1)
    assert report.code is ErrorCode.RUN_NAN
    assert report.message == "the loss of step 4 is nan"
    assert "newest checkpoint, of step 3" in report.advice
    assert "find_nan" in report.advice
    assert sorted(path.name for path in (run_folder / "checkpoints").glob("step_*")) == ["step_1", "step_2", "step_3"]
    assert json.loads((run_folder / "result.json").read_text())["error"]["code"] == "run.nan"
    events = [RUN_EVENT.validate_json(line) for line in (run_folder / "events.jsonl").read_bytes().splitlines()]
    assert math.isnan(next(event for event in events if event.kind == "metric" and event.step == 4).values["loss"])


def test_on_nan_warn_goes_on_and_says_so_once(capsys):
    run = train(Network(), sgd, data=batches(3, math.nan), epochs=2, on_nan="warn")
    assert len(run.losses) == 6
    assert capsys.readouterr().out.count("the loss of step 3 is nan (said once)") == 1


def test_the_operation_that_it_began_in_is_named_with_its_module_and_line():
    report = fails(Logarithm(), batches(3, 1e9), find_nan=True)
    assert report.code is ErrorCode.RUN_NAN
    assert (report.operation, report.module) == ("aten.log", "inner")
    assert (report.file, report.line) == (__file__, line_of("here"))
    expected = "the loss of step 3 is nan: the first operation whose output was not finite is aten.log, of module inner"
    assert report.message.startswith(expected)


def test_what_the_batch_held_already_is_named_as_the_batch():
    report = fails(Network(), batches(2, math.inf), find_nan=True)
    assert report.message == "the loss of step 2 is nan: input 0 of the batch held infinity already"


def test_a_weight_that_is_not_finite_is_named():
    model = Network()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    report = fails(model, batches(2, 1.0), find_nan=True)
    assert report.message == "the loss of step 1 is nan: parameter head.weight held NaN already"


def test_gradients_that_are_not_finite_end_the_run_at_their_step():
    report = fails(Root(), batches(3, 1.0), find_nan=True)
    assert report.code is ErrorCode.RUN_NAN
    assert report.message.startswith("gradients of step 1 are not finite: the first operation")
    assert (report.file, report.line) == (__file__, line_of("root"))


def test_a_step_that_was_skipped_for_overflow_is_no_fault(capsys):
    precision = cbt.amp.MixedPrecision(torch.float16, loss_scale="dynamic")
    run = train(Network(), sgd, data=batches(3, 1e9), mixed_precision=precision, find_nan=True)
    assert len(run.losses) == 3
    assert "gradients overflowed" in capsys.readouterr().out


def test_skipped_steps_whose_loss_is_never_finite_end_the_run(monkeypatch):
    monkeypatch.setattr(session, "SKIPPED_IN_A_ROW_LIMIT", 3)
    precision = cbt.amp.MixedPrecision(torch.float16, loss_scale="dynamic")
    data = [(images, labels) for images, labels in loader()]
    data = [*data[:2], *((images * math.nan, labels) for images, labels in data)]
    report = fails(Network(), data, mixed_precision=precision)
    assert report.code is ErrorCode.RUN_NAN
    assert report.message == "the loss of step 5 is nan"


def test_to_look_changes_no_number():
    losses = [train(seeded(), sgd, find_nan=look).losses for look in (False, True)]
    assert losses[0] == losses[1]


def seeded() -> Network:
    torch.manual_seed(3)
    return Network(dropout=0.5)


def test_an_infinity_that_vanishes_before_the_result_is_not_followed():
    class Masks(nn.Module):
        def forward(self, x, y):
            return torch.softmax(x.masked_fill(x > 0, -math.inf), 0) + torch.exp(y)

    program = torch.export.export(Masks(), (torch.ones(4), torch.ones(4))).module(check_guards=False)
    half = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert first_non_finite(program, [half, half], ["x", "y"]) is None
    found = first_non_finite(program, [half, half * 1000], ["x", "y"])
    assert (found.operation, found.kind) == ("aten.exp", "infinity")
    found = first_non_finite(program, [torch.ones(4), half], ["x", "y"])  # a row that is masked as a whole
    assert (found.operation, found.kind) == ("aten.softmax", "NaN")


def test_a_shape_that_does_not_match_the_artifact_is_told_with_both_shapes():
    with cbt.init_context():
        model = Network()
        data = cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, sgd(model.parameters()), nn.CrossEntropyLoss(), data)
        with pytest.raises(ArtifactMismatch) as caught:
            compiled_model(torch.zeros(4, 1, 6, 6))
    assert caught.value.report.code is ErrorCode.RUN_ARTIFACT_MISMATCH
    expected = "compiled for inputs float32[8, 1, 6, 6], not float32[4, 1, 6, 6]"
    assert expected in caught.value.report.message
    assert caught.value.report.advice


@contextmanager
def room_for(path: Path, size_bytes: int) -> Iterator[None]:
    """The file may grow by so much and no more, as on a disk that is almost full."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_an_event_is_written_whole_or_not_at_all(tmp_path):
    events = EventWriter(tmp_path / "events.jsonl")
    events.append(WarningEvent, message="first")
    whole = (tmp_path / "events.jsonl").read_bytes()
    with room_for(tmp_path / "events.jsonl", 20), pytest.raises(OSError, match="File too large"):
        events.append(WarningEvent, message="second")
    assert (tmp_path / "events.jsonl").read_bytes() == whole
    events.append(WarningEvent, message="third")
    events.close()
    lines = [RUN_EVENT.validate_json(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert [line.message for line in lines] == ["first", "third"]


def test_time_in_which_the_process_was_stopped_does_not_count(monkeypatch, run_folder):
    now = 0.0
    monkeypatch.setattr(watch, "time", types.SimpleNamespace(monotonic=lambda: now))
    check = watch._ProgressLimit(Process(RunDirectory(run_folder)), 12.0, lambda: 0)
    for after, reported in ((1e6, False), (2e6, False), (2e6 + 1, False), (2e6 + 3, True)):
        now = after
        assert (check() is not None) == reported
