"""The store: tensors behind each other, in memory or in a mapped file; updates in chunks are updates of each."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebras_contract.artifacts import UpdateSpec
from cerebras_wafer.simulator import update as update_module
from cerebras_wafer.simulator.store import MappedMemory, ResidentMemory, Store
from cerebras_wafer.simulator.update import Updater

MEBIBYTE = 1 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def momentum(arguments):
    """SGD with momentum and a count of steps, as an update program has it."""
    parameter, gradient, count, average, rate = arguments
    average = average * 0.9 + gradient
    count = count + 1
    return parameter - rate.float() * average / count, count, average


SPEC = UpdateSpec(
    file="update_0.pt2",
    inputs=["parameter:0", "gradient:0", "state:0/step", "state:0/average", "rate:0"],
    outputs=["parameter:0", "state:0/step", "state:0/average"],
    calls=[],
    elementwise=True,
)


def store_of(shapes, memory_of=ResidentMemory):
    names = [f"layer{number}.weight" for number in range(len(shapes))]
    spec = SPEC.model_copy(update={"calls": [names]})
    examples = {f"parameter:{name}": torch.empty(shape) for name, shape in zip(names, shapes, strict=True)}
    examples |= {f"state:{name}/average": examples[f"parameter:{name}"] for name in names}
    examples |= {f"state:{name}/step": torch.empty(()) for name in names}
    manifest = SimpleNamespace(updates=[spec])
    artifact = SimpleNamespace(updates=[momentum], update_code=[None], manifest=manifest)
    store = Store(examples, [spec], memory_of)
    return names, store, Updater(artifact, store)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple), min_size=1, max_size=6),
    steps=st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=4),
    chunk=st.sampled_from([16, 48, 1 << 18]),
)
def test_updates_behind_each_other_are_updates_of_each(shapes, steps, chunk):
    shapes = [shape or (1,) for shape in shapes]
    names, store, updater = store_of(shapes)
    torch.manual_seed(0)
    expected = {}
    for name, shape in zip(names, shapes, strict=True):
        start = torch.randn(shape)
        store.tensors[f"parameter:{name}"].copy_(start)
        expected[name] = (start, torch.zeros(()), torch.zeros(shape))
    rate = torch.tensor(0.1, dtype=torch.float64)
    before, update_module.CHUNK_ELEMENTS = update_module.CHUNK_ELEMENTS, chunk
    try:
        for with_gradient in steps:
            present = {name for number, name in enumerate(names) if number in with_gradient}
            for name in names:
                gradient = store.tensors[f"gradient:{name}"].normal_()
                if name in present:
                    parameter, count, average = expected[name]
                    expected[name] = momentum([parameter, gradient, count, average, rate])
            updater.update(present, [rate])
    finally:
        update_module.CHUNK_ELEMENTS = before
    for name in names:
        for role, value in zip(("parameter:{}", "state:{}/step", "state:{}/average"), expected[name], strict=True):
            assert torch.equal(store.tensors[role.format(name)], value), role


@pytest.mark.parametrize("strides", [(1, 4), (12, 1)])
def test_a_tensor_keeps_its_strides_where_they_leave_no_gaps(strides):
    example = torch.empty_strided((4, 3), strides)
    store = Store({"parameter:weight": example}, [], ResidentMemory)
    place = store.tensors["parameter:weight"]
    assert place.shape == (4, 3)
    assert place.stride() == (strides if strides == (1, 4) else (3, 1))


def test_what_is_let_go_leaves_memory_and_keeps_its_values(tmp_path):
    names, store, _ = store_of([(4 * MEBIBYTE,), (4 * MEBIBYTE,)], lambda size: MappedMemory(tmp_path, size))
    assert not list(tmp_path.iterdir())  # nothing stays behind, however the process ends
    before = resident_bytes()
    for number, name in enumerate(names):
        store.tensors[f"parameter:{name}"].fill_(number + 1)
    assert resident_bytes() - before > 30 * MEBIBYTE
    store.let_go([f"parameter:{names[0]}"])
    assert 14 * MEBIBYTE < resident_bytes() - before < 20 * MEBIBYTE
    store.let_go([f"parameter:{names[1]}"])
    assert resident_bytes() - before < 4 * MEBIBYTE
    store.will_need([f"parameter:{name}" for name in names])
    for number, name in enumerate(names):
        assert store.tensors[f"parameter:{name}"].unique().tolist() == [number + 1]


def test_an_update_of_a_mapped_store_holds_a_part_of_it_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(update_module, "LET_GO_ELEMENTS", MEBIBYTE)
    names, store, updater = store_of([(32 * MEBIBYTE,)], lambda size: MappedMemory(tmp_path, size))
    store.tensors[f"gradient:{names[0]}"].fill_(1)
    store.let_go(store.tensors)
    held = []
    let_go = store.memory.let_go
    monkeypatch.setattr(store.memory, "let_go", lambda parts: (held.append(resident_bytes()), let_go(parts)))
    before = resident_bytes()
    updater.update(set(names), [torch.tensor(1.0, dtype=torch.float64)])
    assert len(held) == 32
    assert max(held) - before < 96 * MEBIBYTE  # of the 384 MiB that an update takes and changes
    assert store.tensors[f"parameter:{names[0]}"].unique().tolist() == [-1.0]


def test_a_folder_without_room_is_an_error_at_once(tmp_path):
    with pytest.raises(OSError, match="No space left|too large"):
        MappedMemory(tmp_path, 1 << 60)


def test_copies_of_what_is_mapped_lie_in_a_file_of_their_own(tmp_path):
    names, store, _ = store_of([(8 * MEBIBYTE,), (3, 5)], lambda size: MappedMemory(tmp_path, size))
    for number, name in enumerate(names):
        store.tensors[f"parameter:{name}"].fill_(number + 1)
    store.let_go(store.tensors)
    before = resident_bytes()
    tensors = {name: store.tensors[f"parameter:{name}"] for name in names}
    copies, memory = store.memory.copies_of(tensors)
    assert resident_bytes() - before < 8 * MEBIBYTE  # of 32, twice
    assert all(memory.holds(copy) and not store.memory.holds(copy) for copy in copies.values())
    store.tensors[f"parameter:{names[0]}"].zero_()
    assert [copies[name].unique().tolist() for name in names] == [[1.0], [2.0]]
    assert [copy.shape for copy in copies.values()] == [tensor.shape for tensor in tensors.values()]
