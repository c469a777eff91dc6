"""The artifact: its key, its files, and what is said of a damaged one."""

import subprocess
import sys

import pytest
import torch
from tests.fixtures.training import Network, compiled

from cerebras_contract.artifacts import MANIFEST_FILE, PrecisionSpec, ProgramName
from cerebras_contract.run_directory import RunDirectory
from cerebras_wafer.compiler.emit import write_artifact
from cerebras_wafer.errors import ArtifactMismatch, CompileError
from cerebras_wafer.simulator.load import load_artifact


@pytest.fixture(scope="module")
def artifact_folder(tmp_path_factory):
    folder = RunDirectory(tmp_path_factory.mktemp("run")).compile
    write_artifact(compiled(), folder, input_key="input", ingredients={})
    return folder


def test_the_folder_holds_manifest_plan_reports_and_programs(artifact_folder):
    names = {path.name for path in artifact_folder.iterdir()}
    described = {"manifest.json", "plan.json", "report.json", "report.txt", "report.html", "kernels.txt"}
    updates = {"update_0.pt2"}  # one for all parameters: Adam does the same to every element
    assert names == described | updates | {program.file_name for program in ProgramName}


def test_what_is_loaded_computes_what_was_compiled(artifact_folder):
    loaded = load_artifact(artifact_folder)
    spec = loaded.manifest.programs[ProgramName.EVALUATE]
    model = Network().eval()
    weights = {f"parameter:{n}": p for n, p in model.named_parameters()}
    weights |= {f"buffer:{n}": b for n, b in model.named_buffers()}
    images = torch.randn(8, 1, 6, 6)
    with torch.no_grad():
        (output,) = loaded.programs[ProgramName.EVALUATE]([{**weights, "input:0": images}[r] for r in spec.inputs])
        assert torch.equal(output, model(images))


def test_no_weight_is_in_the_files(artifact_folder):
    weights = 4 * sum(p.numel() for p in Network(width=64).parameters())
    small = {p.name: p.stat().st_size for p in artifact_folder.glob("*.pt2")}
    wide = compiled(Network(width=64))
    folder = artifact_folder.with_name("wide")
    write_artifact(wide, folder, input_key="input", ingredients={})
    grown = sum(p.stat().st_size - small[p.name] for p in folder.glob("*.pt2"))
    assert grown < weights / 4


@pytest.mark.parametrize("name", ["forward.pt2", "plan.json", MANIFEST_FILE])
def test_a_damaged_artifact_is_refused(artifact_folder, tmp_path, name):
    folder = tmp_path / "compile"
    folder.mkdir()
    for path in artifact_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    damaged = folder / name
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(ArtifactMismatch, match=str(folder)):
        load_artifact(folder)


def test_the_key_is_the_same_in_another_process():
    program = "from tests.fixtures.training import compiled; print(compiled().key)"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == compiled().key


def test_what_changes_the_program_or_its_machine_changes_the_key():
    keys = [
        compiled().key,
        compiled(Network(width=8)).key,
        compiled(Network(dropout=0.5)).key,
        compiled(batch_size=4).key,
        compiled(system="cs-3").key,
        compiled(num_csx=2).key,
        compiled(precision=PrecisionSpec(compute_dtype="float16")).key,
        compiled(make_optimizer=torch.optim.AdamW).key,
        compiled(make_optimizer=lambda p: torch.optim.Adam(p, betas=(0.8, 0.99))).key,
    ]
    assert len(set(keys)) == len(keys)


def test_weights_and_learning_rates_do_not_change_the_key():
    torch.manual_seed(5)
    assert compiled(Network()).key == compiled(make_optimizer=lambda p: torch.optim.Adam(p, lr=0.7)).key


def test_a_folder_that_is_no_artifact_is_not_replaced(tmp_path):
    folder = RunDirectory(tmp_path).compile
    folder.mkdir()
    (folder / "notes.txt").write_text("precious")
    with pytest.raises(CompileError, match="is not an artifact, so it is not replaced"):
        write_artifact(compiled(), folder, input_key="input", ingredients={})
    assert (folder / "notes.txt").read_text() == "precious"
