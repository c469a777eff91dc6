"""What a run writes for people: log lines, the summary at the end, run_summary.json, the bar, TensorBoard's files."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.training import Network, loader, train
from torch import nn, optim

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_contract.summaries import AttemptEnd, RunSummary
from cerebras_pytorch.training.summary import SummaryFile

pytestmark = pytest.mark.usefixtures("run_folder")

ROOT = Path(__file__).resolve().parents[3]
NUMBER = r"\d+\.\d{2}"
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO:   "


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1)


def attempts(folder):
    return RunSummary.model_validate_json((folder / "run_summary.json").read_bytes()).attempts


def spans(folder):
    return [(one.number, one.start_step, one.end_step, one.reason) for one in attempts(folder)]


@pytest.mark.parametrize(
    ("device", "simulated"), [("CPU", ""), ("CSX", rf", DeviceRate={NUMBER} samples/sec \(simulated\)")]
)
def test_a_line_every_so_many_steps_as_the_real_system_writes_it(capsys, device, simulated):
    train(Network(), sgd, epochs=2, log_steps=4, target_device=device)
    lines = [line for line in capsys.readouterr().out.splitlines() if "| Train" in line]
    form = rf"Loss=\d+\.\d{{5}}, Rate={NUMBER} samples/sec, GlobalRate={NUMBER} samples/sec{simulated}"
    for line, step in zip(lines, (4, 8, 10), strict=True):
        assert re.fullmatch(rf"{STAMP}\| Train Device={device}, Step={step}, {form}", line), line


def test_a_summary_at_the_end(capsys):
    run = train(Network(), sgd, epochs=2, checkpoint_steps=4)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("Training completed successfully!") for line in lines)
    assert any(re.search(r"Processed 80 training sample\(s\) in \d+\.\d{3} seconds\.$", line) for line in lines)
    (line,) = [line for line in lines if "Training finished" in line]
    loss = f"last loss {run.losses[-1]:.5f}"
    expected = rf"Training finished: steps 1 to 10, {loss}, Rate={NUMBER} samples/sec; 3 checkpoints saved, 0 warnings"
    assert re.search(f"{expected}$", line), line


def test_each_attempt_is_in_the_run_summary_with_its_steps_and_its_end(run_folder):
    train(Network(), sgd, checkpoint_steps=5)
    (first,) = attempts(run_folder)
    assert (first.start_step, first.end_step, first.reason, first.error) == (0, 5, AttemptEnd.FINISHED, None)
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at
    train(Network(), sgd, epochs=2, autoload_last_checkpoint=True)
    assert spans(run_folder) == [(1, 0, 5, "finished"), (2, 5, 10, "finished")]


class Broken(Exception):
    """An error of the script."""


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (Broken(), AttemptEnd.FAILED, ErrorCode.SCRIPT_RAISED),
        (SystemExit(3), AttemptEnd.FAILED, ErrorCode.SCRIPT_EXITED),
        (SystemExit(0), AttemptEnd.FINISHED, None),
        (KeyboardInterrupt(), AttemptEnd.STOPPED, None),
    ],
)
def test_an_attempt_that_does_not_come_to_its_end_says_why(run_folder, error, reason, code):
    with pytest.raises(type(error)), cbt.init_context():
        model, criterion = Network(), nn.CrossEntropyLoss()
        optimizer, data = sgd(model.parameters()), cbt.utils.data.DataLoader(loader())
        compiled_model = cbt.compile(model, optimizer, criterion, data)
        for number, (x, y) in enumerate(data):
            if number == 2:
                raise error
            criterion(compiled_model(x), y).backward()
            optimizer.step()
    (attempt,) = attempts(run_folder)
    assert (attempt.end_step, attempt.reason, attempt.error) == (2, reason, code)
    assert json.loads((run_folder / "result.json").read_text())["last_step"] == 2


def test_an_attempt_that_never_said_how_it_ended_was_killed(run_folder, capsys):
    train(Network(), sgd, epochs=0)
    path = run_folder / "run_summary.json"
    killed = SummaryFile(path)
    killed.starts_from(3)
    killed.reached(7)
    assert attempts(run_folder)[1].reason is None
    train(Network(), sgd, epochs=0)
    assert spans(run_folder) == [(1, 0, 0, "finished"), (2, 3, 7, "killed"), (3, 0, 0, "finished")]
    assert attempts(run_folder)[1].ended_at is None
    assert "before it, attempt 2: steps 3 to 7, killed" in capsys.readouterr().out


def test_a_run_summary_that_cannot_be_read_is_begun_anew(run_folder, capsys):
    (run_folder / "run_summary.json").write_text('{"attempts": [')
    train(Network(), sgd, epochs=0)
    assert spans(run_folder) == [(1, 0, 0, "finished")]
    assert "run_summary.json is not one that this version wrote" in capsys.readouterr().out


SCRIPT = """
import sys
from tests.unit.framework.test_logs import Network, sgd, train
print("a line of the script's own")
train(Network(), sgd, log_steps=1, max_steps=4)
print("another", file=sys.stderr)
"""


def on_terminal(folder, columns):
    """What a terminal of that width is sent by a run."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "24"}
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}){SCRIPT}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    sent = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        sent += data
    os.close(ours)
    assert process.wait(timeout=60) == 0, sent.decode()
    return sent.decode()


def test_a_progress_bar_on_a_terminal_leaves_log_lines_whole(run_folder):
    sent = on_terminal(run_folder, columns=60)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent).replace("\r\n", "\n").replace("\r", "\n").splitlines()
    for step in range(1, 5):
        (line,) = [line for line in lines if f"| Train Device=CPU, Step={step}," in line]
        assert len(line) > 60
        assert re.fullmatch(rf"{STAMP}\| Train .*GlobalRate={NUMBER} samples/sec", line), line
    bars = [line for line in lines if re.match(r"Step +\d+/4 ", line)]
    assert bars
    assert re.match(r"Step +4/4 ", bars[-1])


def test_where_standard_output_is_no_terminal_there_is_no_bar(capfd):
    train(Network(), sgd, log_steps=1, max_steps=4)
    printed = capfd.readouterr().out
    assert printed.count("| Train Device=CPU") == 4
    assert "\x1b" not in printed
    assert not re.search(r"^Step +\d", printed, flags=re.MULTILINE)


def test_event_files_for_tensorboard_hold_every_metric(run_folder):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` of cerebras-emulator-pytorch is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(Network(), sgd, log_steps=2, tensorboard=True)
    events = EventAccumulator(str(run_folder / "tensorboard")).Reload()
    scalars = events.Scalars("loss")
    assert [one.step for one in scalars] == [1, 2, 3, 4, 5]
    assert [one.value for one in scalars] == pytest.approx(run.losses)
    assert [one.step for one in events.Scalars("rate/wall_samples_per_second")] == [2, 4, 5]
    assert (run_folder / "tensorboard" / ".cerebrasignore").exists()


def test_without_the_package_the_extra_is_named_before_anything_is_compiled(run_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ReportedError, match=r"cerebras-emulator-pytorch\[tensorboard\]") as caught:
        train(Network(), sgd, tensorboard="events")
    assert caught.value.report.code is ErrorCode.CONFIG_INVALID
    assert not (run_folder / "compile").exists()
