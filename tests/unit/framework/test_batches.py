"""Batches that have another shape than the compiled one, and a torch loader that is not wrapped."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode
from cerebras_contract.events import RUN_EVENT

pytestmark = pytest.mark.usefixtures("run_folder")


def batch(samples: int = 4, length: int = 6, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(samples, length), torch.ones(samples, classes)


class Mean(nn.Module):
    """Takes any length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, x):
        return self.layer(x.mean(dim=1, keepdim=True))


def train(batches, loop_over=None, **settings) -> cbt.Context:
    model, criterion = Mean(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(**settings))
        loader = batches if loop_over is not None else cbt.utils.data.DataLoader(batches)
        compiled_model = cbt.compile(model, optimizer, criterion, loader)
        for _ in range(2):
            for x, y in loop_over if loop_over is not None else loader:
                optimizer.zero_grad()
                criterion(compiled_model(x), y).backward()
                optimizer.step()
    return context


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([batch(), batch(length=7), batch()], r"batch 2 .* inputs float32\[4, 7\]: .* compiled for float32\[4, 6\]"),
        ([batch(), batch(), batch(samples=5)], r"batch 3 .* inputs float32\[5, 6\]"),
        ([batch(), batch(samples=2), batch()], r"batch 2 .* has 2 samples and is not the last one: .* for 4"),
        ([batch(), batch(samples=2), batch(samples=2)], r"batch 2 .* has 2 samples and is not the last one"),
        ([batch(), (batch()[0], torch.ones(4, 1))], r"batch 2 .* targets float32\[4, 1\]"),
    ],
)
def test_a_batch_of_another_shape_is_refused_by_its_number(batches, message):
    with pytest.raises(cbt.CompileError, match=message) as caught:
        train(batches)
    assert caught.value.report.code is ErrorCode.COMPILE_SHAPE_CHANGED
    assert caught.value.report.advice


def test_what_is_left_over_at_the_end_of_an_epoch_is_dropped():
    context = train([batch(), batch(), batch(samples=3)])
    assert context.session is not None
    assert context.session.step == 4
    events = [RUN_EVENT.validate_json(line) for line in Path("events.jsonl").read_bytes().splitlines()]
    assert [event.message for event in events if event.kind == "warning" and "dropped a batch of 3" in event.message]


class Stream(IterableDataset):
    """Ten samples a worker: each has two left over of batches of four."""

    def __iter__(self):
        assert get_worker_info() is not None
        for _ in range(10):
            yield tuple(part[0] for part in batch(samples=1))


def test_each_worker_of_a_stream_may_have_samples_left_over():
    context = train(DataLoader(Stream(), batch_size=4, num_workers=2))
    assert context.session is not None
    assert context.session.step == 2 * 2 * 2


def test_a_plain_torch_loader_is_wrapped_with_a_warning_and_its_loops_are_counted():
    plain = DataLoader(TensorDataset(*batch(samples=24)), batch_size=4, shuffle=True)
    context = train(plain, loop_over=plain, max_steps=8, checkpoint_steps=4)
    assert context.session is not None
    assert context.session.step == 8
    assert type(plain) is DataLoader
    assert len(list(plain)) == 6
    events = [RUN_EVENT.validate_json(line) for line in Path("events.jsonl").read_bytes().splitlines()]
    assert [event for event in events if event.kind == "warning" and "plain torch DataLoader" in event.message]
    assert [event.step for event in events if event.kind == "checkpoint"] == [4, 8]
