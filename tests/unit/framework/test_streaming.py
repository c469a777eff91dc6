"""Weight streaming: the losses are those of resident execution, bit for bit, however a script trains."""

import copy
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.fixtures.resuming import run_folder
from tests.fixtures.training import Network, loader
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.artifacts import MANIFEST_FILE, PLAN_FILE, Manifest
from cerebras_contract.digests import sha256_of_file
from cerebras_contract.plans import Phase, Plan

STREAMED, RESIDENT = "weight_streaming", "pipelined"
TOKENS, LENGTH, BATCH = 24, 6, 8


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Language(nn.Module):
    """Embeddings, equal layers, and a head whose weight is that of the first layer: tied."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        x = self.tokens(x) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Loss(nn.Module):
    def forward(self, outputs, target):
        return nn.functional.cross_entropy(outputs, target.flatten())


def batches(count: int = 6):
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, TOKENS, (count, BATCH, LENGTH + 1), generator=generator)
    return [(row[:, :-1], row[:, 1:].contiguous()) for row in rows]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, as for language models: a layer's parameters do not lie behind each other."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=0.01)


def separately(compiled, optimizer, criterion, batch):
    optimizer.zero_grad()
    loss = criterion(compiled(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def at_once(compiled, optimizer, criterion, batch):
    return compiled.train_step(*batch)


def clipped(clip):
    def step(compiled, optimizer, criterion, batch):
        optimizer.zero_grad()
        loss = criterion(compiled(batch[0]), batch[1])
        loss.backward()
        clip(compiled.parameters(), 0.1)
        optimizer.step()
        return loss

    return step


def accumulated(set_to_none):
    seen = []

    def step(compiled, optimizer, criterion, batch):
        seen.append(batch)
        loss = criterion(compiled(batch[0]), batch[1])
        loss.backward()
        if len(seen) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        return loss

    return step


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Each kind of run has a folder of its own under this one, in which what was compiled is found again."""
    return tmp_path_factory.mktemp("streaming")


def trained(
    base, mode, step=separately, kind="AdamW", make_model=Language, criterion=None, data=None, num_csx=1, **options
):
    """Losses, weights, and the compiled parts."""
    torch.manual_seed(0)
    model, criterion = make_model(), criterion or Loss()
    with (
        run_folder(base / "-".join([mode, kind, make_model.__name__, *map(str, options)])),
        cbt.init_context() as context,
    ):
        context.set_run_config(cbt.utils.config.RunConfig(execution_mode=mode, num_csx=num_csx))
        optimizer = OPTIMIZERS[kind](model)
        train_loader = cbt.utils.data.DataLoader(data or batches())
        precision = cbt.amp.MixedPrecision(**options) if options else None
        compiled = cbt.compile(model, optimizer, criterion, train_loader, mixed_precision=precision)
        losses = [step(compiled, optimizer, criterion, batch).item() for batch in train_loader]
        parts = context.session.compiled
        return losses, {name: value.clone() for name, value in model.state_dict().items()}, parts


def assert_same(ours, theirs):
    assert len(set(ours[0])) == len(ours[0]) > 3
    assert ours[0] == theirs[0]
    assert all(torch.equal(ours[1][name], theirs[1][name]) for name in theirs[1])


def halve(parameter):
    parameter.grad.mul_(0.5)


def hooked():
    seen = []

    def step(compiled, optimizer, criterion, batch):
        if not seen:
            first, *_, last = compiled.parameters()
            first.register_hook(lambda gradient: gradient.clamp(-0.001, 0.001))
            last.register_post_accumulate_grad_hook(halve)
        seen.append(batch)
        return separately(compiled, optimizer, criterion, batch)

    return step


STEPS = {
    "separately": lambda: separately,
    "at once": lambda: at_once,
    "clipped by torch": lambda: clipped(torch.nn.utils.clip_grad_norm_),
    "clipped": lambda: clipped(cbt.nn.utils.clip_grad_norm_),
    "accumulated": lambda: accumulated(set_to_none=True),
    "accumulated in place": lambda: accumulated(set_to_none=False),
    "with hooks": hooked,
}
OPTIMIZERS = {
    "AdamW": adamw,
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.05),
}


@pytest.mark.parametrize("name", STEPS)
def test_streamed_training_is_resident_training(base, name):
    streamed, resident = (trained(base, mode, STEPS[name]()) for mode in (STREAMED, RESIDENT))
    assert streamed[2].trained.is_streamed
    assert not resident[2].trained.is_streamed
    assert_same(streamed, resident)


def test_hooks_are_called_and_a_whole_step_refuses_them(base):
    assert trained(base, STREAMED, hooked())[0] != trained(base, STREAMED)[0]

    def with_a_hook(compiled, optimizer, criterion, batch):
        next(compiled.parameters()).register_hook(lambda gradient: gradient)
        return at_once(compiled, optimizer, criterion, batch)

    with pytest.raises(RuntimeError, match="the gradient of .*weight has one: write the loop out"):
        trained(base, STREAMED, with_a_hook)


def test_clipping_is_that_of_pytorch(base):
    ours, theirs = (trained(base, RESIDENT, STEPS[name]()) for name in ("clipped", "clipped by torch"))
    assert ours[0] != trained(base, RESIDENT)[0]
    assert_same(ours, theirs)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("mode", [STREAMED, RESIDENT])
def test_a_whole_step_is_its_parts(base, kind, mode):
    assert_same(trained(base, mode, at_once, kind), trained(base, mode, separately, kind))


@pytest.mark.parametrize(
    "options", [{"param_dtype": torch.float16, "loss_scale": "dynamic"}, {"param_dtype": torch.bfloat16}]
)
def test_half_precision_streams_too(base, options):
    resident = trained(base, RESIDENT, **options)
    for step in (separately, at_once):
        assert_same(trained(base, STREAMED, step, **options), resident)


class Normed(Network):
    """Convolutions, batch norm, dropout."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)


def test_batch_norm_and_dropout_stream_too(base):
    def run(mode, step):
        return trained(base, mode, step, make_model=Normed, criterion=nn.CrossEntropyLoss(), data=list(loader()))

    resident = run(RESIDENT, separately)
    assert_same(run(STREAMED, separately), resident)
    assert_same(run(STREAMED, at_once), resident)


def test_several_systems_share_the_batch_on_the_clock_alone(base, tmp_path):
    one, two = trained(base, STREAMED), trained(tmp_path, STREAMED, num_csx=2)
    assert_same(two, one)
    assert two[2].clock.plan.num_csx == 2
    assert two[2].clock.plan.micro_batch * two[2].clock.plan.micro_batches_per_step == BATCH // 2
    assert two[2].clock.cycles != one[2].clock.cycles


class Frozen(Language):
    """A layer in the middle is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].requires_grad_(requires_grad=False)


def test_frozen_layers_stream_too(base):
    resident = trained(base, RESIDENT, make_model=Frozen)
    for step in (separately, at_once):
        streamed = trained(base, STREAMED, step, make_model=Frozen)
        assert_same(streamed, resident)
        assert "blocks.1" in {moved.layer for moved in streamed[2].streamer.trace}


def moves(parts, phase, *actions):
    """What was moved in the last step."""
    return [
        (moved.action, moved.layer)
        for moved in parts.streamer.trace
        if moved.phase == phase and moved.action in actions
    ]


LAYERS = ["tokens", "blocks.0", "blocks.1", "blocks.2", "head"]


def test_one_layer_at_a_time_is_there_and_the_next_is_fetched(base):
    *_, parts = trained(base, STREAMED, at_once)
    forward = moves(parts, Phase.FORWARD, "bring in", "let go", "prefetch")
    expected = [
        move
        for one, following in pairwise(LAYERS)
        for move in (("bring in", one), ("prefetch", following), ("let go", one))
    ] + [("bring in", "head"), ("let go", "head")]
    assert forward == expected * len(batches())
    backward = moves(parts, Phase.BACKWARD, "bring in", "update", "let go")
    updated = [layer for action, layer in backward if action == "update"]
    in_a_step = [*reversed(LAYERS[1:-1]), "tokens"]  # the head's weight is that of the tokens, which are its last use
    assert updated == in_a_step * len(batches())


@pytest.mark.parametrize("mode", [STREAMED, RESIDENT])
def test_what_a_script_saves_or_copies_is_its_own(base, mode, tmp_path):
    """Not the store that it lies in, with gradients and moments."""
    *_, parts = trained(base, mode)
    model = parts.model.model
    size_bytes = sum(parameter.nbytes for parameter in model.parameters())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_size < size_bytes + 20_000
    kept = copy.deepcopy(model)
    assert sum(parameter.untyped_storage().nbytes() for parameter in kept.parameters()) == size_bytes
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    torch.save(parts.optimizer.state_dict(), tmp_path / "optimizer.pt")
    assert (tmp_path / "optimizer.pt").stat().st_size < 2 * size_bytes + 40_000


class Wide(nn.Module):
    """32 MiB of parameters, 16 in each of six layers of which one at a time is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_the_process_stays_within_the_bound_of_the_plan(tmp_path):
    """Of 384 MB (parameters, gradients, two moments) a process holds a layer or two."""
    for mode, least, most in ((STREAMED, 16, 160), (RESIDENT, 384, 900)):
        script = tmp_path / f"{mode}.py"
        script.write_text(SCRIPT.format(here=str(Path(__file__).parents[3]), mode=mode))
        command = [sys.executable, str(script)]
        printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        grown, bound = re.findall(r"grown (\d+) bound (\d+)", printed)[-1]
        assert least << 20 < int(grown) < most << 20
        assert int(grown) < int(bound)
        assert "this process holds more" not in printed


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import torch
from tests.unit.framework.test_streaming import Wide
import cerebras_pytorch as cbt
from torch import nn

with cbt.init_context() as context:
    context.set_run_config(cbt.utils.config.RunConfig(execution_mode={mode!r}, log_steps=1))
    model, criterion = Wide(), nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = (torch.ones(4, 2048), torch.zeros(4, 2048))
    loader = cbt.utils.data.DataLoader([batch] * 2)
    compiled = cbt.compile(model, optimizer, criterion, loader)
    for inputs, target in loader:
        optimizer.zero_grad()
        criterion(compiled(inputs), target).backward()
        cbt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    memory = context.session.recorder.memory
    print("grown", memory.grown_bytes, "bound", memory.bound_bytes)
"""


def edit_plan(artifact, change):
    """Change the plan of an artifact, and its digest in the manifest."""
    plan = Plan.model_validate_json((artifact / PLAN_FILE).read_bytes())
    (artifact / PLAN_FILE).write_text(change(plan).model_dump_json())
    manifest = Manifest.model_validate_json((artifact / MANIFEST_FILE).read_bytes())
    manifest.digests[PLAN_FILE] = sha256_of_file(artifact / PLAN_FILE)
    (artifact / MANIFEST_FILE).write_text(manifest.model_dump_json())


def test_residency_and_prefetch_follow_an_edited_plan(base):
    before = trained(base, STREAMED, at_once)

    def join(plan):
        """The first two blocks as one layer."""
        first, second = plan.layers[1:3]
        joined = first.model_copy(update={"weights": [*first.weights, *second.weights]})
        return plan.model_copy(update={"layers": [plan.layers[0], joined, *plan.layers[3:]]})

    artifact = next(base.glob(f"{STREAMED}-AdamW-Language")) / "compile"
    shutil.copytree(artifact, base / "kept")
    edit_plan(artifact, join)
    after = trained(base, STREAMED, at_once)
    shutil.rmtree(artifact)
    (base / "kept").rename(artifact)
    assert_same(after, before)
    assert moves(after[2], Phase.FORWARD, "bring in")[-4:] == [
        ("bring in", layer) for layer in ("tokens", "blocks.0", "blocks.2", "head")
    ]
    assert moves(after[2], Phase.FORWARD, "prefetch")[-2] == ("prefetch", "blocks.2")


@pytest.mark.parametrize("mode", [STREAMED, RESIDENT])
def test_the_artifact_is_what_runs(base, mode, monkeypatch):
    expected = trained(base, mode, make_model=Language)
    for kind in (Language, Block, nn.LayerNorm, nn.Linear, nn.Embedding, Loss):
        monkeypatch.setattr(kind, "forward", lambda *_: pytest.fail("the user's forward ran"))
    for step in (separately, at_once):
        assert_same(trained(base, mode, step, make_model=Language), expected)
