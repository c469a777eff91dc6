"""Planning in this process: what is captured, how a script that is only planned ends, and systems from files."""

import re

import pytest
import torch
from tests.fixtures.training import Network, compiled, loader, train
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.artifacts import ProgramName
from cerebras_contract.configuration_reader import read_configuration
from cerebras_contract.errors import ReportedError
from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_pytorch import planning
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.step import capture_wafer_step
from cerebras_pytorch.endings import CompilePhaseEnd
from cerebras_pytorch.process import Process, set_current_process
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.text import print_graph
from cerebras_wafer.compiler.pipeline import kernel_graph

SCRIPT = """
import sys, torch
from torch import nn
import cerebras_pytorch as cbt

with cbt.init_context() as context:
    model = nn.Linear(4, 3)
    data = [(torch.randn(8, 4), torch.randint(0, 3, (8,)))]
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    {before}
    cbt.compile(model, optimizer, criterion, cbt.utils.data.DataLoader(data))
"""


def without_places(graph):
    """Its text. The criterion is PyTorch's own: its place is the line that called for the capture."""
    return re.sub(r"^  source .*\n", "", print_graph(graph), flags=re.MULTILINE)


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def capture(folder, before="pass", config=None):
    """Capture the script as `plan` does; the scratch folder is apart from the current one."""
    (folder / "train.py").write_text(SCRIPT.replace("{before}", before))
    scratch = folder.with_name(f"{folder.name}-scratch")
    scratch.mkdir()
    return planning._capture(scratch, config, "train.py", [])


def test_what_is_captured_for_a_plan_gives_the_kernels_that_a_compile_gives():
    made = compiled()
    torch.manual_seed(0)
    model = Network()
    batch = divide(next(iter(loader())))
    step = capture_wafer_step(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()), batch)
    programs, graph = kernel_graph(step, made.options, lambda _line: None)
    assert without_places(graph) == without_places(made.graph)
    assert set(programs) == {ProgramName.FORWARD, ProgramName.LOSS, ProgramName.BACKWARD}


def test_a_script_that_is_only_planned_ends_at_compile_and_leaves_no_artifact(run_folder):
    process = Process(RunDirectory(run_folder), stage=StageKind.COMPILE, planning=True)
    set_current_process(process)
    with pytest.raises(CompilePhaseEnd):
        train(Network(), torch.optim.Adam, max_steps=7, num_csx=2)
    assert (process.captured.max_steps, process.captured.options.num_csx) == (7, 2)
    assert process.captured.step.batch_size == 8
    assert process.artifact_key is None
    assert not (run_folder / "compile").exists()


def test_the_configuration_reaches_the_script_and_the_folder_stays_as_it_is(run_folder):
    (run_folder / "run.yaml").write_text("runconfig:\n  max_steps: 7\n  system: tiny\n")
    captured = capture(run_folder, config=run_folder / "run.yaml")
    assert (captured.max_steps, captured.options.system) == (7, "tiny")
    assert names(run_folder) == ["run.yaml", "train.py"]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("sys.exit()", "error: train.py: the script ended without calling cerebras_pytorch.compile"),
        ("sys.exit(3)", "the script called sys.exit(3)"),
        ("raise ValueError('no luck')", 'File "train.py", line 10, in <module>'),
        ("criterion = None", "criterion is a NoneType, not a Module"),
    ],
)
def test_a_script_that_does_not_get_to_compile_is_told_and_nothing_is_captured(run_folder, capsys, before, told):
    assert capture(run_folder, before) is None
    assert told in capsys.readouterr().err


def recompiled(capsys) -> str:
    """What a run by hand said of its artifact: that it was found, or what had changed."""
    said = re.search(r"Found the artifact|because this changed: .*", capsys.readouterr().out)
    return said[0] if said else "compiled"


def test_of_a_system_from_a_file_the_content_counts_not_the_path(run_folder, capsys):
    def run(system: str) -> str:
        train(Network(), torch.optim.Adam, max_steps=1, system=system, target_device="CSX")
        return recompiled(capsys)

    (run_folder / "own.yaml").write_text("like: tiny\nname: own\n")
    assert run("own.yaml") == "compiled"
    (run_folder / "specs").mkdir()
    (run_folder / "own.yaml").rename(run_folder / "specs" / "moved.yaml")
    assert run("specs/moved.yaml") == "Found the artifact"
    (run_folder / "specs" / "moved.yaml").write_text("like: tiny\nname: own\nclock_hz: 1e6\n")
    assert run("specs/moved.yaml") == "because this changed: figures of the system"
    assert run("cs-2").startswith("because this changed: system own -> cs-2; figures of the system")


def test_a_fault_of_a_system_from_a_file_is_told_before_anything_is_done(run_folder):
    (run_folder / "own.yaml").write_text("like: tiny\nclock: 1\n")
    (run_folder / "run.yaml").write_text("runconfig:\n  system: own.yaml\n")
    assert read_configuration(run_folder / "run.yaml").runconfig.system == "own.yaml"
    with pytest.raises(ReportedError, match="own.yaml:2: unknown key 'clock'"), cbt.init_context("run.yaml"):
        pytest.fail("the context opened")


def test_the_key_of_an_artifact_has_the_figures_of_its_system(tmp_path):
    def key(text: str, name: str = "own.yaml") -> str:
        (tmp_path / name).write_text(text)
        return compiled(system=str(tmp_path / name)).key

    plain = key("like: tiny\nname: own\n")
    assert key("like: tiny\nname: own\nfabric_rows: 20\n", "other.yaml") == plain
    assert key("like: tiny\nname: own\nfabric_rows: 21\n") != plain


def test_options_of_a_plan_are_those_of_the_script(run_folder):
    captured = capture(run_folder, "context.set_run_config(cbt.utils.config.RunConfig(num_csx=4, system='cs-3'))")
    assert isinstance(captured.options, CompileOptions)
    assert (captured.options.system, captured.options.num_csx) == ("cs-3", 4)
