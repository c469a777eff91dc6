"""A compile ends at its limits of memory and time, and a loader that blocks is named with the line where it sat."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_pytorch import limits, memory
from cerebras_pytorch.data import first_batch
from cerebras_pytorch.settings import GIBIBYTE

pytestmark = pytest.mark.usefixtures("run_folder")

MEBIBYTE = 1 << 20
LIMIT_SECONDS = 1000.0
WAIT_SECONDS = 100.0
STUCK = Path("stuck")


@pytest.fixture
def child():
    """A process of this one's child that holds 300 MiB, and tells its number."""
    holds = "import os, time; kept = b'x' * (300 << 20); print(os.getpid(), flush=True); time.sleep(100)"
    shell = f'{sys.executable} -c "{holds}" & wait'
    process = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield int(process.stdout.readline())
    for pid in memory.descendants():
        os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_memory_of_started_processes_counts(child):
    limit = limits.MemoryLimit(memory.used_bytes() + 200 * MEBIBYTE)
    assert "more than its limit" in limit().message
    os.kill(child, signal.SIGKILL)
    await_end(child)
    assert limit() is None


def test_a_limit_ends_the_processes_that_a_compile_has_started(child):
    """Those of its children, too, which would go on without them."""
    passed = ErrorReport(code=ErrorCode.COMPILE_TIMEOUT, message="it was passed")
    with (
        cbt.init_context() as context,
        pytest.raises(cbt.CompileError, match="it was passed"),
        limits.limited(context.process, lambda: passed, ends_children=True),
    ):
        time.sleep(WAIT_SECONDS)
    await_end(child)


def await_end(process: int) -> None:
    """Until a process is gone, or waits for nothing but to be asked how it ended."""
    state = Path(f"/proc/{process}/stat")
    while state.exists() and ") Z " not in state.read_text():
        time.sleep(0.01)


class Model(nn.Module):
    """A linear layer with something else in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept: list[bytes] = []

    def forward(self, x):
        self.something_else()
        return self.layer(x)

    def something_else(self) -> None:
        raise NotImplementedError


class Grows(Model):
    def something_else(self):
        while True:
            self.kept.append(b"x" * MEBIBYTE)  # here


class AsksForTooMuch(Model):
    def something_else(self):
        self.kept.append(bytes(1 << 60))  # here


class Waits(Model):
    def something_else(self):
        STUCK.touch()
        time.sleep(WAIT_SECONDS)  # here


class Computes(Model):
    def something_else(self):
        STUCK.touch()
        while True:
            sum(range(1000))  # here


class Swallows(Model):
    def something_else(self):
        with contextlib.suppress(Exception):
            STUCK.touch()
            time.sleep(WAIT_SECONDS)  # here


class Samples(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if number == 3:
            self.fetch()
        return torch.ones(4), torch.ones(4)

    def fetch(self) -> None:
        STUCK.touch()
        time.sleep(WAIT_SECONDS)  # here


@pytest.fixture(autouse=True)
def passing_time(monkeypatch, run_folder):
    """Time passes at once where something gets stuck: no test waits for a limit, or depends on the machine."""

    def now() -> float:
        return time.monotonic() + 10 * LIMIT_SECONDS * STUCK.exists()

    clock = types.SimpleNamespace(sleep=time.sleep, monotonic=now)
    monkeypatch.setattr(limits, "time", clock)
    monkeypatch.setattr(first_batch, "time", clock)


def lines_of(kind: type) -> set[int]:
    """The marked line of a class of this file, and the one before it (a loop is on either)."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"class {kind.__name__}("))
    marked = next(number + 1 for number in range(start, len(lines)) if lines[number].endswith("# here"))
    return {marked - 1, marked}


def compile_fails(model: nn.Module, batches: object = None, **settings: float) -> ErrorReport:
    batches = batches or [(torch.ones(3, 4), torch.ones(3, 4))]
    handler = signal.getsignal(signal.SIGUSR2)
    with cbt.init_context() as context, pytest.raises(cbt.CompileError) as caught:
        context.set_run_config(cbt.utils.config.RunConfig(**settings))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        cbt.compile(model, optimizer, nn.MSELoss(), cbt.utils.data.DataLoader(batches))
    assert signal.getsignal(signal.SIGUSR2) is handler
    assert not [thread for thread in threading.enumerate() if thread.name == "limits of the compile"]
    return caught.value.report


def test_a_compile_that_grows_past_its_memory_is_ended():
    limit_bytes = (memory.used_bytes() or 0) + 200 * MEBIBYTE
    report = compile_fails(Grows(), compile_crd_memory_gi=limit_bytes / GIBIBYTE)
    assert report.code is ErrorCode.COMPILE_OUT_OF_MEMORY
    assert (report.file, report.line in lines_of(Grows)) == (__file__, True)
    assert f"its limit of {limit_bytes / GIBIBYTE:.2f} GiB (compile_crd_memory_gi)" in report.message
    for remedy in ("more memory", "swap", "batch", "model smaller"):
        assert remedy in (report.advice or "")


def test_the_default_limit_is_what_the_machine_has_free(monkeypatch):
    monkeypatch.setattr("cerebras_pytorch.limits.free_bytes", lambda: 300 * MEBIBYTE)
    report = compile_fails(Grows())
    assert report.code is ErrorCode.COMPILE_OUT_OF_MEMORY
    assert "what this machine had free at the start" in report.message


def test_an_allocation_that_the_system_refuses_is_the_same_error():
    report = compile_fails(AsksForTooMuch())
    assert report.code is ErrorCode.COMPILE_OUT_OF_MEMORY
    assert (report.file, report.line in lines_of(AsksForTooMuch)) == (__file__, True)


@pytest.mark.parametrize("kind", [Waits, Computes, Swallows])
def test_a_compile_that_passes_its_time_is_ended_where_it_stands(kind):
    report = compile_fails(kind(), compile_timeout_seconds=LIMIT_SECONDS)
    assert report.code is ErrorCode.COMPILE_TIMEOUT
    assert (report.file, report.line in lines_of(kind)) == (__file__, True)
    assert "in something_else" in report.message
    assert "in forward" in report.message
    assert "site-packages" not in report.message


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_blocks_is_named_with_the_call_it_sat_in(workers):
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8, num_workers=workers)
    report = compile_fails(nn.Linear(4, 4), loader, input_timeout_seconds=LIMIT_SECONDS)
    assert report.code is ErrorCode.COMPILE_INPUT_BLOCKED
    assert (report.file, report.line in lines_of(Samples)) == (__file__, True)
    assert "in __getitem__" in report.message
    assert ("worker 0 sat" in report.message) == bool(workers)
    assert loader.worker_init_fn is None


class Late(torch.utils.data.IterableDataset):
    """Its second worker gives nothing for a while."""

    def __iter__(self):
        for _ in range(4):
            yield torch.ones(4), torch.ones(4)


def test_a_worker_that_starts_after_the_first_batch_goes_on(monkeypatch):
    """The first worker's batch may be trained on before the second has started."""
    prepare = first_batch._prepare

    def prepare_late(folder, then, worker):
        while worker and folder.exists():
            time.sleep(0.01)
        prepare(folder, then, worker)

    monkeypatch.setattr(first_batch, "_prepare", prepare_late)
    with cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig())
        model, criterion = nn.Linear(4, 4), nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(Late(), 2, num_workers=2))
        compiled = cbt.compile(model, optimizer, criterion, loader)
        for inputs, target in loader:
            criterion(compiled(inputs), target).backward()
            optimizer.step()
    assert context.session.step == 4


def test_an_error_that_a_check_brings_about_is_told_as_what_it_found(run_folder):
    """A loader's worker that is asked for its stack ends: the main thread may see that before the check is over."""
    found = ErrorReport(code=ErrorCode.COMPILE_INPUT_BLOCKED, message="no batch came")
    broken = threading.Event()

    def check() -> ErrorReport:
        broken.set()
        time.sleep(0.2)
        return found

    with (
        cbt.init_context() as context,
        pytest.raises(cbt.CompileError) as caught,
        limits.limited(context.process, check),
    ):
        broken.wait()
        raise RuntimeError("a worker of the loader exited unexpectedly")
    assert caught.value.report == found


def test_a_compile_within_its_limits_is_left_alone():
    with cbt.init_context() as context:
        context.set_run_config(cbt.utils.config.RunConfig(compile_timeout_seconds=LIMIT_SECONDS))
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(torch.ones(3, 4), torch.ones(3, 4))]
        cbt.compile(model, optimizer, nn.MSELoss(), cbt.utils.data.DataLoader(batches))
        assert context.session is not None


def test_memory_that_is_written_counts_and_mapped_files_do_not(tmp_path):
    before = memory.used_bytes() or 0
    kept = b"x" * (64 * MEBIBYTE)
    grown = (memory.used_bytes() or 0) - before
    assert 60 * MEBIBYTE < grown < 80 * MEBIBYTE
    (tmp_path / "file").write_bytes(kept)
    mapped = torch.from_file(str(tmp_path / "file"), shared=False, size=len(kept), dtype=torch.uint8)
    assert mapped[::4096].count_nonzero() == len(kept) // 4096
    assert (memory.used_bytes() or 0) - before < 80 * MEBIBYTE


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch, version):
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:  1000 kB\nMemAvailable:   900 kB\nSwapFree:   100 kB\n")
    root = tmp_path if version == 2 else tmp_path / "memory"
    group = root / "slice" / "job"
    group.mkdir(parents=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    groups = tmp_path / "cgroup"
    groups.write_text("0::/slice/job\n" if version == 2 else "3:cpu:/other\n4:memory:/slice/job\n")
    for name, path in (("MACHINE", machine), ("GROUPS", groups), ("GROUP_FILES", tmp_path)):
        monkeypatch.setattr(memory, name, path)
    assert memory.free_bytes() == 1000 << 10
    (group / names[0]).write_text("max\n" if version == 2 else "9223372036854771712\n")
    (group / names[1]).write_text("0\n")
    assert memory.free_bytes() == 1000 << 10
    (group.parent / names[0]).write_text("500000\n")
    (group.parent / names[1]).write_text("300000\n")
    (group.parent / "memory.stat").write_text(f"anon 200000\n{names[2]} 100000\n")
    assert memory.free_bytes() == 300000
