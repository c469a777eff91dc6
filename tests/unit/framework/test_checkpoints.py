"""Checkpoints on disk: what is damaged, foreign or old is refused by name; which are kept; how they are converted."""

import json
import math
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_pytorch.__main__ import main
from cerebras_pytorch.checkpoints import read_checkpoint, save, state_dict
from cerebras_pytorch.checkpoints.folder import KeepRule, let_go, newest_checkpoint
from cerebras_pytorch.checkpoints.save import Snapshot, write_checkpoint
from cerebras_pytorch.checkpoints.saver import Saver
from cerebras_pytorch.checkpoints.tensor_file import DTYPE_NAMES, write_tensors
from cerebras_pytorch.checkpoints.values import NotStorableError, from_json, to_json

MODEL = {"conv.weight": torch.arange(12.0).reshape(3, 4), "count": torch.tensor(7), "none": torch.zeros(0, 3)}


def snapshot(step: int = 5) -> Snapshot:
    moments = {f"{name}/exp_avg": value + step for name, value in MODEL.items()}
    training = {"epochs": [{"batches": 3, "ended": False, "trained": True}]}
    return Snapshot(step, "cs_1", MODEL, "Adam", [{"lr": 0.01}], moments, training, {"t": torch.ones(2)}, {"best": 0.5})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "step_5", snapshot())
    return tmp_path / "step_5"


def refusal(folder: Path) -> tuple[str, str]:
    """The file that is named, and what is said of it."""
    with pytest.raises(ReportedError) as refused:
        read_checkpoint(folder)
    report = refused.value.report
    assert report.code is ErrorCode.CHECKPOINT_INVALID
    assert report.advice
    return Path(report.file or "").name, report.message


def test_what_is_written_is_read_again_and_by_others(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    assert (checkpoint.step, checkpoint.extra, checkpoint.training) == (5, {"best": 0.5}, snapshot().training)
    for written, read in ((MODEL, checkpoint.model), (snapshot().optimizer, checkpoint.optimizer)):
        assert written is not None
        assert read is not None
        assert {name: value.tolist() for name, value in read.items()} == {n: v.tolist() for n, v in written.items()}
    assert load_file(folder / "model.safetensors")["conv.weight"].tolist() == MODEL["conv.weight"].tolist()
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".json"] + [".safetensors"] * 3  # no pickle


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_every_dtype_keeps_its_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(24, dtype=torch.uint8).view(torch.uint8)
    tensor = tensor.bool() if dtype is torch.bool else tensor.view(dtype)
    write_tensors(tmp_path / "file", {"a": tensor, "odd": torch.ones(3, dtype=torch.uint8)})
    read = load_file(tmp_path / "file")
    assert read["a"].dtype is dtype
    assert read["a"].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


@pytest.mark.parametrize("tensor", ["conv.weight/exp_avg", "count/exp_avg"])
def test_a_flipped_bit_names_file_and_tensor(folder: Path, tensor: str) -> None:
    file = folder / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    content[8 + length + json.loads(content[8 : 8 + length])[tensor]["data_offsets"][0]] ^= 1
    file.write_bytes(content)
    assert refusal(folder) == (file.name, f"differs from what was saved: the bytes of {tensor} are damaged")


def test_a_renamed_tensor_is_no_other_one(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"conv.weight", b"conv.weighs"))
    assert refusal(folder) == (
        file.name,
        "differs from what was saved: its header is damaged at conv.weight, conv.weighs",
    )


def test_a_truncated_file_names_the_tensor_that_it_breaks_off_in(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    name, message = refusal(folder)
    assert name == file.name
    assert message == f"truncated: it has {len(content) - 1} bytes, and breaks off before the end of conv.weight"
    file.write_bytes(content[:20])
    assert refusal(folder) == (file.name, "truncated: it has 20 bytes, and breaks off inside its header")
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    assert refusal(folder)[1].startswith("not a safetensors file")


def test_a_missing_or_foreign_file_is_named(folder: Path, tmp_path: Path) -> None:
    training = folder / "training.json"
    training.write_text(training.read_text().replace("3", "4"))
    assert refusal(folder) == ("training.json", "differs from what was saved (its sha256 is not the manifest's)")
    (folder / "optimizer.safetensors").unlink()
    assert refusal(folder) == ("optimizer.safetensors", "missing from the checkpoint")
    manifest = folder / "checkpoint.json"
    for content, message in [
        ("{}", "names no schema_version"),
        ("[1]", "names no schema_version"),
        ("\x00", "it is no JSON"),
        ('{"schema_version": 2, "stepp": 1}', "not the manifest of a checkpoint: step: Field required"),
    ]:
        manifest.write_text(content)
        assert message in refusal(folder)[1]
    assert refusal(tmp_path) == ("checkpoint.json", "no checkpoint here: No such file or directory")


@pytest.mark.parametrize(("version", "advice"), [(1, "load_file"), (3, "Install the version")])
def test_another_version_is_refused_with_what_to_do(folder: Path, version: int, advice: str) -> None:
    manifest = folder / "checkpoint.json"
    content = {**json.loads(manifest.read_text()), "schema_version": version, "a key of that version": 1}
    manifest.write_text(json.dumps(content))
    with pytest.raises(ReportedError, match=f"written in format {version}; this version reads 2") as refused:
        read_checkpoint(folder)
    assert advice in (refused.value.report.advice or "")


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (KeepRule(), [1, 2, 3, 4, 5, 6, 7]),
        (KeepRule(newest=2), [6, 7]),
        (KeepRule(newest=1, every=3), [3, 6, 7]),
        (KeepRule(newest=9), [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_rule_says_which_are_kept(tmp_path: Path, rule: KeepRule, left: list[int]) -> None:
    removed = []
    for step in range(1, 8):
        write_checkpoint(tmp_path / f"step_{step}", snapshot(step))
        removed += let_go(tmp_path, rule)
    assert sorted(int(path.name.removeprefix("step_")) for path in tmp_path.iterdir()) == left
    assert sorted([*removed, *left]) == [1, 2, 3, 4, 5, 6, 7]


def test_the_newest_is_the_one_that_was_saved_last_and_is_undamaged(tmp_path: Path) -> None:
    for step in (8, 9, 2, 3):  # as if begun anew in the same place
        write_checkpoint(tmp_path / f"step_{step}", snapshot(step))
    (tmp_path / "step_3" / "training.safetensors").write_bytes(b"")
    shutil.copytree(tmp_path / "step_2", tmp_path / ".step_4.partial")
    (tmp_path / "step_notes").mkdir()
    warnings: list[str] = []
    newest = newest_checkpoint(tmp_path, warnings.append)
    assert newest is not None
    assert newest.step == 2
    assert len(warnings) == 1
    assert "passed over step_3" in warnings[0]
    assert "training.safetensors" in warnings[0]
    assert newest_checkpoint(tmp_path / "nowhere", warnings.append) is None


def test_an_error_while_writing_is_not_lost_and_hurts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver()
    saver.save(tmp_path / "step_1", snapshot(1), KeepRule())
    saver.wait()

    def broken(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(save, "write_tensors", broken)
    saver.save(tmp_path / "step_2", snapshot(2), KeepRule())
    with pytest.raises(ReportedError, match="step 2 was not saved .*: Input/output error") as refused:
        saver.wait()
    assert refused.value.report.code is ErrorCode.CHECKPOINT_NOT_SAVED
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
    assert [saved.step for saved in saver.take_saved()] == [1]
    assert read_checkpoint(tmp_path / "step_1").step == 1


def test_a_save_goes_on_beside_and_holds_what_was_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, write = threading.Event(), save.write_tensors

    def wait_and_write(*arguments: object) -> object:
        may_write.wait(30)
        return write(*arguments)

    monkeypatch.setattr(save, "write_tensors", wait_and_write)
    saver = Saver()
    saver.save(tmp_path / "step_1", snapshot(1), KeepRule())
    assert saver.take_saved() == []  # training is here while nothing is written
    may_write.set()
    saver.wait()
    assert [saved.step for saved in saver.take_saved()] == [1]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers(), inner)
        | st.builds(Counter, st.dictionaries(st.integers(), st.integers()))
    ),
)


@given(VALUES)
def test_values_come_back_exactly(value: object) -> None:
    stored = json.dumps(to_json(value, None, "it"), allow_nan=False)
    assert repr(from_json(json.loads(stored), {})) == repr(value)


def test_tensors_arrays_and_numbers_of_numpy_come_back_and_others_are_named() -> None:
    tensors: dict[str, torch.Tensor] = {}
    value = {"rate": torch.tensor(0.1), "key": np.arange(3, dtype=np.uint32), "n": np.float32(0.5), "inf": -math.inf}
    back = from_json(to_json(value, tensors, "it"), tensors)
    assert repr(back) == repr({**value, "n": 0.5})
    with pytest.raises(NotStorableError, match="it/a/1 is a set"):
        to_json({"a": [1, {2}]}, tensors, "it")


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["python -m cerebras_pytorch", "checkpoint", *map(str, words)])
    return main()


def test_converted_to_a_state_dict_and_back(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, again = tmp_path / "model.pt", tmp_path / "again"
    assert command(monkeypatch, "convert", folder, plain) == 0
    assert {n: v.tolist() for n, v in torch.load(plain, weights_only=True).items()} == {
        name: value.tolist() for name, value in MODEL.items()
    }
    assert command(monkeypatch, "convert", plain, again) == 0
    assert {n: v.tolist() for n, v in state_dict(again).items()} == {n: v.tolist() for n, v in MODEL.items()}
    assert read_checkpoint(again).optimizer is None


def test_what_is_no_state_dict_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    plain = tmp_path / "model.pt"
    for content, message in [({"model": {"a": torch.ones(1)}}, "its entry 'model' is a dict"), ([1], "holds a list")]:
        torch.save(content, plain)
        assert command(monkeypatch, "convert", plain, tmp_path / "out") == 1
        assert message in capsys.readouterr().err
    plain.write_bytes(b"no such thing")
    assert command(monkeypatch, "convert", plain, tmp_path / "out") == 1
    assert "cannot be read as a state dict" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_inspect_shows_what_there_is_and_what_is_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert command(monkeypatch, "inspect", folder) == 0
    shown = capsys.readouterr().out
    for text in ("Step         5", "epoch 1, 3 batches into it", "Adam, learning rate 0.01", '{"best": 0.5}', "[3, 4]"):
        assert text in shown
    assert "DAMAGED" not in shown
    assert command(monkeypatch, "inspect", folder, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["tensors"]
    assert {row["name"]: row["size_bytes"] for row in rows if row["file"] == "model.safetensors"} == {
        "conv.weight": 48, "count": 8, "none": 0,
    }  # fmt: skip
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert command(monkeypatch, "inspect", folder) == 1
    shown = capsys.readouterr()
    assert shown.out.count("DAMAGED") == 2
    assert "model.safetensors: conv.weight is damaged" in shown.err
