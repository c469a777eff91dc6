"""`codegen: inductor`: code is generated where the artifact is made, and runs where there is no compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.fixtures.resuming import run_folder as in_folder
from tests.fixtures.training import compiled
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.artifacts import GENERATED, MANIFEST_FILE, Machine, Manifest, ProgramName
from cerebras_wafer.compiler.codegen import _reads_a_number, refuse_without_compiler
from cerebras_wafer.errors import ArtifactMismatch, CompileError
from cerebras_wafer.simulator import load

SCRIPT = """
import os
import sys
import torch
from torch import nn
import cerebras_pytorch as cbt

words = os.environ["WORDS"]  # arguments would be ingredients of the artifact's key
torch.manual_seed(0)
with cbt.init_context() as context:
    settings = dict(codegen=sys.argv[1], execution_mode="weight_streaming", checkpoint_steps=2)
    settings["autoload_last_checkpoint"] = "resume" in words
    context.set_run_config(cbt.utils.config.RunConfig(**settings))
    model = nn.Sequential(nn.Embedding(12, 6), nn.Flatten(), nn.Linear(18, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=0.05), nn.CrossEntropyLoss()
    numbers, labels = torch.randint(0, 12, (640, 3)), torch.randint(0, 3, (640,))
    numbers[-1] = 99 if "bad" in words else 3
    data = torch.utils.data.TensorDataset(numbers, labels)
    loader = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(data, 64))
    compiled = cbt.compile(model, optimizer, criterion, loader)
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(compiled(x), y)
        loss.backward()
        optimizer.step()
        print("loss", context.session.step + 1, loss.item())
        if "cut" in words and number == 4:
            break
    model.eval()
    print("evaluated", compiled(torch.ones(3, 3, dtype=torch.long)).sum().item())
"""


def run(folder: Path, codegen: str, *words: str, path: str | None = None, threads: int = 2) -> tuple[list[str], str]:
    """The losses of a script that a process of its own runs, and all that it printed. `path`: where its tools are."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "WORDS": " ".join(words),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": str(threads),
    }
    if path is not None:
        environment |= {"PATH": path, "CXX": ""}
    done = subprocess.run(
        [sys.executable, "train.py", codegen],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if line.startswith(("loss", "evaluated"))], done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[str]]:
    """A folder with an artifact that holds code, and the losses of a run from it."""
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("inductor")
    losses, printed = run(folder, "inductor")
    assert "Generating code for update (4 of 4)" in printed
    assert len(losses) == 11, printed
    return folder, losses


def numbers(lines: list[str]) -> list[float]:
    return [float(line.split()[-1]) for line in lines]


def test_generated_code_trains_as_the_programs_do(made, tmp_path):
    folder, losses = made
    manifest = Manifest.model_validate_json((folder / "compile" / MANIFEST_FILE).read_bytes())
    assert all(manifest.programs[name].code for name in GENERATED)
    assert manifest.updates[0].code
    assert manifest.made_on.threads == 2
    interpreted, _ = run(tmp_path, "interpret")
    assert numbers(losses) == pytest.approx(numbers(interpreted), rel=1e-4)  # dropout draws the same


def test_where_it_runs_no_compiler_is_needed_and_none_is_called(made, tmp_path):
    folder, losses = made
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder / "compile", elsewhere / "compile")
    again, printed = run(elsewhere, "inductor", path="")
    assert "nothing changed, not compiling" in printed
    assert again == losses
    assert not list((elsewhere / "cache").rglob("*.so"))


def test_where_it_runs_there_may_be_another_number_of_threads(made, tmp_path):
    folder, losses = made
    shutil.copytree(folder / "compile", tmp_path / "compile")
    again, printed = run(tmp_path, "inductor", path="", threads=3)
    assert "nothing changed, not compiling" in printed
    assert numbers(again) == pytest.approx(numbers(losses), rel=1e-4)


def test_a_run_that_was_cut_off_goes_on_bitwise(made, tmp_path):
    folder, losses = made
    shutil.copytree(folder / "compile", tmp_path / "compile")
    first, _ = run(tmp_path, "inductor", "cut")
    assert first[:5] == losses[:5]
    shutil.rmtree(tmp_path / "checkpoints" / "step_5")
    second, printed = run(tmp_path, "inductor", "resume")
    assert "Going on from checkpoints/step_4" in printed
    assert second == losses[4:]


def test_a_batch_that_fails_is_told_with_the_users_line(made, tmp_path):
    """The index that is out of range is read by the last of several threads."""
    folder, _ = made
    shutil.copytree(folder / "compile", tmp_path / "compile")
    losses, printed = run(tmp_path, "inductor", "bad")
    assert len(losses) == 9
    assert "with values from" in printed
    assert "99" in printed
    assert "Traceback" not in printed


def test_an_update_that_reads_its_rate_as_a_number_stays_a_program():
    """That of SGD, momentum, RMSprop, Adagrad: no code is generated, and none is missed."""
    made = compiled(make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    assert [_reads_a_number(update) for update in made.step.updates] == [True]
    made = compiled(make_optimizer=torch.optim.AdamW)
    assert [_reads_a_number(update) for update in made.step.updates] == [False]


def test_code_for_another_processor_is_refused(made, tmp_path, monkeypatch):
    folder, _ = made
    other = Machine(processor="another", instruction_set="riscv64 DEFAULT", threads=1)
    monkeypatch.setattr(load, "this_machine", lambda: other)
    with pytest.raises(ArtifactMismatch, match="holds code for .*, and this processor is riscv64 DEFAULT of another"):
        load.load_artifact(folder / "compile")


def test_where_weights_stream_code_is_of_layers(tmp_path):
    """Layers that are alike share their code, and a layer's weights are let go after its code has run."""
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    losses = {}
    for codegen in ("interpret", "inductor"):
        torch.manual_seed(0)
        with in_folder(tmp_path / codegen), cbt.init_context() as context:
            context.set_run_config(cbt.utils.config.RunConfig(codegen=codegen, execution_mode="weight_streaming"))
            model = nn.Sequential(*(nn.Linear(2100, 2100) for _ in range(3)))  # of more bytes than share a segment
            optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
            loader = cbt.utils.data.DataLoader([(torch.randn(4, 2100), torch.randn(4, 2100))] * 3)
            compiled = cbt.compile(model, optimizer, criterion, loader)
            losses[codegen] = [compiled.train_step(*batch).item() for batch in loader]
            moved = [
                (one.action, one.layer) for one in context.session.compiled.streamer.trace if one.phase == "forward"
            ]
        assert moved[:3] == [("bring in", "0"), ("prefetch", "1"), ("let go", "0")]
    manifest = Manifest.model_validate_json((tmp_path / "inductor" / "compile" / MANIFEST_FILE).read_bytes())
    files = {name: [one.file for one in manifest.programs[name].code] for name in GENERATED}
    first, second, third = files[ProgramName.FORWARD]
    assert second == third  # the first keeps nothing for backward but what it was given
    assert files[ProgramName.EVALUATE] == [first] * 3
    assert losses["inductor"] == pytest.approx(losses["interpret"], rel=1e-4)


def test_a_missing_compiler_is_told_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "")
    with pytest.raises(CompileError, match="needs a C\\+\\+ compiler .* there is no g\\+\\+") as caught:
        refuse_without_compiler()
    assert "codegen: interpret" in (caught.value.report.advice or "")
    with in_folder(tmp_path), cbt.init_context() as context, pytest.raises(CompileError, match="needs a C"):
        context.set_run_config(cbt.utils.config.RunConfig(codegen="inductor"))
        model = nn.Linear(3, 2)
        loader = cbt.utils.data.DataLoader([(torch.ones(4, 3), torch.ones(4, 2))])
        cbt.compile(model, torch.optim.SGD(model.parameters()), nn.MSELoss(), loader)
    assert not (tmp_path / "compile").exists()
    assert not (tmp_path / ".compile.partial").exists()
