"""k steps, an end, and a resume give bitwise what all steps in one go give."""

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fixtures.resuming import (
    EPOCHS,
    STEPS,
    STEPS_AN_EPOCH,
    Augmented,
    Seen,
    run_folder,
    same_end,
    shuffled,
    train,
    with_artifact,
)
from tests.fixtures.training import BATCH, Network, dataset
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, ExponentialLR, MultiStepLR, StepLR

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_pytorch.checkpoints import read_checkpoint, state_dict
from cerebras_pytorch.checkpoints.save import Snapshot, write_checkpoint
from cerebras_pytorch.endings import RunStopped
from cerebras_pytorch.training import start
from cerebras_wafer.simulator.load import Artifact, read_manifest


@pytest.fixture(scope="module", autouse=True)
def artifact_loaded_once() -> Iterator[None]:
    """All runs here have the same artifact: it is nine tenths of the time of one to load it."""
    load, loaded = start.load_artifact, {}

    def load_once(folder: Path) -> Artifact:
        key = read_manifest(folder).artifact_key
        if key not in loaded:
            loaded[key] = load(folder)
        return loaded[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "load_artifact", load_once)
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifact, and in it the run in one go."""
    folder = tmp_path_factory.mktemp("in_one_go")
    train(folder, epochs=0)
    return folder


@pytest.fixture(scope="module")
def in_one_go(template: Path) -> Seen:
    seen = train(template)
    assert len(seen.lines) == STEPS
    return seen


def cut_off_and_resumed(template: Path, folder: Path, step: int, **options) -> tuple[Seen, Seen]:
    with_artifact(template, folder)
    before = train(folder, cut_off_in=step + 1, checkpoint_steps=1, **options)
    return before, train(folder, autoload_last_checkpoint=True, **options)


CUTS = [1, 3, STEPS_AN_EPOCH, STEPS_AN_EPOCH + 2, 2 * STEPS_AN_EPOCH]


@pytest.mark.parametrize("step", CUTS)
def test_resuming_gives_what_one_go_gives(template, in_one_go, tmp_path, step):
    before, after = cut_off_and_resumed(template, tmp_path, step)
    assert before.lines == in_one_go.lines[:step]
    assert after.first_step == step + 1
    assert after.lines == in_one_go.lines[step:]
    assert same_end(after, in_one_go)
    # What the evaluations after the resume saw; those before it saw the checkpoint's weights.
    finished_epochs = (step - 1) // STEPS_AN_EPOCH
    assert after.accuracies[finished_epochs:] == in_one_go.accuracies[finished_epochs:]


def test_streamed_weights_are_saved_and_put_back(in_one_go, tmp_path):
    """The checkpoint is copied from file to file while training goes on; resident training gives the same."""
    before = train(tmp_path, cut_off_in=4, checkpoint_steps=1, execution_mode="weight_streaming")
    after = train(tmp_path, autoload_last_checkpoint=True, execution_mode="weight_streaming")
    assert before.lines + after.lines == in_one_go.lines
    assert same_end(after, in_one_go)


@pytest.mark.parametrize("step", [STEPS_AN_EPOCH, STEPS_AN_EPOCH + 2])
def test_worker_processes_change_nothing(template, in_one_go, tmp_path, step):
    before, after = cut_off_and_resumed(template, tmp_path, step, data=lambda: shuffled(workers=2))
    assert before.lines + after.lines == in_one_go.lines
    assert same_end(after, in_one_go)


def test_workers_that_persist_are_positioned_too(template, in_one_go, tmp_path):
    _, after = cut_off_and_resumed(
        template, tmp_path, STEPS_AN_EPOCH + 2, data=lambda: shuffled(workers=1, persistent_workers=True)
    )
    assert after.lines == in_one_go.lines[STEPS_AN_EPOCH + 2 :]


def test_skipped_samples_are_not_loaded(template, tmp_path):
    _, after = cut_off_and_resumed(template, tmp_path, 2 * STEPS_AN_EPOCH + 3)
    looked_at = BATCH  # by compile
    assert len(after.loaded) == looked_at + (STEPS - 2 * STEPS_AN_EPOCH - 3) * BATCH


def test_a_run_that_was_finished_has_nothing_to_do(template, in_one_go, tmp_path):
    with_artifact(template, tmp_path)
    train(tmp_path, checkpoint_steps=STEPS)
    again = train(tmp_path, autoload_last_checkpoint=True)
    assert again.lines == []
    assert same_end(again, in_one_go)
    further = train(tmp_path, autoload_last_checkpoint=True, epochs=EPOCHS + 1)
    assert further.first_step == STEPS + 1
    assert len(further.lines) == STEPS_AN_EPOCH


def test_by_hand_a_run_begins_anew_unless_it_is_asked_to_go_on(template, in_one_go, tmp_path):
    with_artifact(template, tmp_path)
    train(tmp_path, checkpoint_steps=2, max_steps=4)
    assert train(tmp_path).lines == in_one_go.lines
    elsewhere = with_artifact(template, tmp_path / "elsewhere")
    assert train(elsewhere, checkpoint_path=str(tmp_path / "checkpoints" / "step_2")).lines == in_one_go.lines[2:]


def test_save_and_load_of_the_script(template, in_one_go, tmp_path):
    with_artifact(template, tmp_path)
    whole = train(tmp_path, save_to={7: tmp_path / "seventh"})
    assert whole.lines == in_one_go.lines  # to save shifts nothing
    after = train(tmp_path, load=tmp_path / "seventh")
    assert after.lines == in_one_go.lines[7:]
    assert after.context.user_state == {"step": 7}


def test_gradients_that_are_accumulated_belong_to_the_next_step(template, tmp_path):
    whole = train(with_artifact(template, tmp_path / "whole"), accumulate=2)
    assert len(whole.lines) == 2 * EPOCHS
    for step in (2, 3):  # the last of an epoch that has a batch left, and one in the middle of the next
        before, after = cut_off_and_resumed(template, tmp_path / str(step), step, accumulate=2)
        assert before.lines + after.lines == whole.lines
        assert same_end(after, whole)


def test_a_loss_scale_that_changes_goes_on(tmp_path):
    half = cbt.amp.MixedPrecision(torch.float16, loss_scale="dynamic")
    whole = train(tmp_path / "whole", mixed_precision=half)
    before, after = cut_off_and_resumed(tmp_path / "whole", tmp_path / "cut", 6, mixed_precision=half)
    assert before.lines + after.lines == whole.lines
    scalers = [seen.context.session.compiled.update.loss_scaler.state_dict() for seen in (whole, after)]
    assert scalers[0] == scalers[1]
    assert scalers[0]["good_steps"] or scalers[0]["skipped_steps"]


def test_an_epoch_that_was_only_looked_at_is_looked_at_again(template, tmp_path):
    """A script may take a batch of the training loader, after compile, and not train on it."""

    def run(folder, stop_after):
        lines = []
        with run_folder(folder), cbt.init_context() as context:
            context.set_run_config(cbt.utils.config.RunConfig(checkpoint_steps=1, autoload_last_checkpoint=True))
            torch.manual_seed(0)
            model = Network(dropout=0.5)
            optimizer, criterion = torch.optim.Adam(model.parameters(), lr=0.01), torch.nn.CrossEntropyLoss()
            loader = cbt.utils.data.DataLoader(shuffled())
            compiled_model = cbt.compile(model, optimizer, criterion, loader)
            for _ in range(2):
                lines.append(float(next(iter(loader))[0].sum()))
                for images, labels in loader:
                    if len(lines) > stop_after:
                        break
                    optimizer.zero_grad()
                    loss = criterion(compiled_model(images), labels)
                    loss.backward()
                    optimizer.step()
                    lines.append(loss.item())
        return lines

    whole = run(with_artifact(template, tmp_path / "whole"), 100)
    assert len(whole) == 2 * (1 + STEPS_AN_EPOCH)
    folder = with_artifact(template, tmp_path / "cut")
    assert run(folder, 3)[:4] == whole[:4]
    shutil.rmtree(folder / "checkpoints" / "step_3", ignore_errors=True)
    assert run(folder, 100) == [whole[0], *whole[3:]]


def chained(optimizer):
    return [ChainedScheduler([ExponentialLR(optimizer, 0.99), StepLR(optimizer, 3)])], [MultiStepLR(optimizer, [1, 2])]


class Metricless(MultiStepLR):
    """Steps by epoch, whatever it is given."""

    def step(self, *_metrics):
        super().step()


def two_of_a_kind(optimizer):
    each_epoch = [Metricless(optimizer, [1, 2])]
    chain = ChainedScheduler([ExponentialLR(optimizer, 0.99), StepLR(optimizer, 3)])
    return [chain, CosineAnnealingLR(optimizer, 40), CosineAnnealingLR(optimizer, 9)], each_epoch


def test_several_schedulers_go_on_each_from_its_own_state(template, tmp_path):
    whole = train(with_artifact(template, tmp_path / "whole"), make_schedules=two_of_a_kind)
    for step in (4, STEPS_AN_EPOCH):
        _, after = cut_off_and_resumed(template, tmp_path / str(step), step, make_schedules=two_of_a_kind)
        assert after.lines == whole.lines[step:]


def small_run(folder, make_optimizer=torch.optim.Adam, width=4, **settings):
    """A small script of its own; its context."""
    with run_folder(folder), cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(**settings))
        model, criterion = (
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, width)),
            torch.nn.CrossEntropyLoss(),
        )
        optimizer = make_optimizer(model.parameters(), lr=0.1)
        loader = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(dataset(), BATCH))
        compiled_model = cbt.compile(model, optimizer, criterion, loader)
        for images, labels in loader:
            criterion(compiled_model(images), labels).backward()
            if context.session.step == 2 and not context.process.stop_requested:
                context.process.stop_requested = True  # as SIGTERM does; gradients are accumulated now
                continue
            optimizer.step()
            optimizer.zero_grad()
            context.user_state["best"] = {"step": context.session.step, "loss": float("inf")}
    return context


def test_other_models_and_optimizers_are_refused_by_file_and_tensor(tmp_path):
    with pytest.raises((RunStopped, SystemExit)):
        small_run(tmp_path / "saved", checkpoint_steps=1)
    saved = sorted(path.name for path in (tmp_path / "saved" / "checkpoints").glob("step_*"))
    assert saved == ["step_1", "step_2", "step_3"]  # the step was finished before the run stopped
    folder = str(tmp_path / "saved" / "checkpoints" / "step_3")
    assert read_checkpoint(folder).extra == {"best": {"step": 2, "loss": float("inf")}}
    for options, message in [
        ({"width": 5}, r"model\.safetensors: 1.weight: float32\[4, 36\]; the model's: 1.weight: float32\[5, 36\]"),
        (
            {"make_optimizer": torch.optim.Adagrad},
            r"optimizer\.safetensors: 1.weight/sum is not there; saved with Adam; Adagrad's: 1.weight/sum: float32",
        ),
    ]:
        with pytest.raises(ReportedError, match=message) as refused:
            small_run(tmp_path / str(options), checkpoint_path=folder, **options)
        assert refused.value.report.code is ErrorCode.CHECKPOINT_MISMATCH


def test_weights_alone_are_where_a_run_begins(template, in_one_go, tmp_path):
    """From a converted state dict, or from a whole checkpoint of which no more is wanted."""
    with_artifact(template, tmp_path)
    train(tmp_path, checkpoint_steps=STEPS)
    trained = tmp_path / "checkpoints" / f"step_{STEPS}"
    write_checkpoint(tmp_path / "weights", Snapshot(step=0, artifact_key="", model=state_dict(trained)))
    converted = train(tmp_path, checkpoint_path=str(tmp_path / "weights"))
    loaded = train(tmp_path, load=trained, weights_only=True)
    assert converted.lines == loaded.lines
    assert (converted.first_step, len(converted.lines)) == (1, STEPS)
    batches = [[line.split()[2] for line in seen.lines] for seen in (converted, in_one_go)]
    assert batches[0] == batches[1]  # from the data's beginning
    losses = [float.fromhex(seen.lines[0].split()[1]) for seen in (converted, in_one_go)]
    assert losses[0] < losses[1]


class Stream(torch.utils.data.IterableDataset):
    """Batches that begin again with each epoch, in an order of the epoch's own."""

    def __iter__(self):
        samples = Augmented()
        return (samples[index] for index in torch.randperm(len(samples)).tolist())


class Endless(torch.utils.data.IterableDataset):
    """Samples that go on where they were, whoever asks."""

    def __init__(self):
        self.samples = iter(itertools.cycle(Augmented()))

    def __iter__(self):
        return self.samples


class Limited:
    """The first batches of each epoch of a source."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        return itertools.islice(self.source, STEPS_AN_EPOCH)


class GrowingSampler(torch.utils.data.Sampler):
    """Counts its epochs, and draws each index as it is asked for it."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return STEPS_AN_EPOCH * BATCH

    def __iter__(self):
        self.epoch += 1
        for _ in range(len(self)):
            yield int(torch.randint(0, 10 * self.epoch, ()))


class BatchesAtRandom:
    """A batch sampler that draws each batch as it is asked for it."""

    def __len__(self):
        return STEPS_AN_EPOCH

    def __iter__(self):
        for _ in range(len(self)):
            yield np.random.permutation(STEPS_AN_EPOCH * BATCH)[:BATCH].tolist()


SOURCES = {
    "a stream that begins again": lambda: torch.utils.data.DataLoader(Stream(), BATCH),
    "a stream of worker processes": lambda: torch.utils.data.DataLoader(Stream(), BATCH, num_workers=1),
    "a list": lambda: list(torch.utils.data.DataLoader(dataset(), BATCH)),
    "an iterable": lambda: Limited(torch.utils.data.DataLoader(dataset(80), BATCH)),
    "an iterator": lambda: iter(list(torch.utils.data.DataLoader(dataset(120), BATCH))),
    "a sampler with a memory": lambda: torch.utils.data.DataLoader(Augmented(), BATCH, sampler=GrowingSampler()),
    "a batch sampler": lambda: torch.utils.data.DataLoader(Augmented(), batch_sampler=BatchesAtRandom()),
    "a generator of its own": lambda: shuffled(generator=torch.Generator().manual_seed(9)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_is_found_again(template, tmp_path, source):
    data = SOURCES[source]
    whole = train(with_artifact(template, tmp_path / "whole"), data=data)
    assert len(whole.lines) in (STEPS, 120 // BATCH)
    for step in (STEPS_AN_EPOCH, STEPS_AN_EPOCH + 2):
        before, after = cut_off_and_resumed(template, tmp_path / str(step), step, data=data)
        assert before.lines + after.lines == whole.lines, f"step {step}"


def test_a_clock_that_was_put_back_does_not_make_a_newer_checkpoint_older(template, tmp_path):
    with_artifact(template, tmp_path)
    train(tmp_path, cut_off_in=3, checkpoint_steps=1)
    manifest = tmp_path / "checkpoints" / "step_2" / "checkpoint.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "created_at": content["created_at"] + 1e6}))
    train(tmp_path, cut_off_in=5, checkpoint_steps=1, keep_checkpoints=1, autoload_last_checkpoint=True)
    assert [path.name for path in (tmp_path / "checkpoints").glob("step_*")] == ["step_4"]


def test_a_loader_that_has_become_shorter_is_refused(template, tmp_path):
    with_artifact(template, tmp_path)
    train(tmp_path, cut_off_in=5, checkpoint_steps=4)
    shorter = lambda: torch.utils.data.DataLoader(Augmented(2 * BATCH), BATCH, shuffle=True)  # noqa: E731
    with pytest.raises(ReportedError, match=r"ended after 2 batches of epoch 1; .* it had given 4"):
        train(tmp_path, autoload_last_checkpoint=True, data=shorter)


def test_other_schedulers_are_refused(template, tmp_path):
    with_artifact(template, tmp_path)
    train(tmp_path, cut_off_in=3, checkpoint_steps=1)
    with pytest.raises(
        ReportedError, match="saved with the schedulers LinearLR, .* the script has ExponentialLR, StepLR"
    ):
        train(tmp_path, autoload_last_checkpoint=True, make_schedules=chained)


def test_order_depends_on_seeds_and_on_nothing_else(template, in_one_go, tmp_path):
    def batches(**settings):
        seen = train(with_artifact(template, tmp_path / str(settings)), epochs=1, **settings)
        return [line.split()[2] for line in seen.lines]

    same = [line.split()[2] for line in in_one_go.lines[:STEPS_AN_EPOCH]]
    assert batches(log_steps=1) == same
    assert batches(seed=1) != same
