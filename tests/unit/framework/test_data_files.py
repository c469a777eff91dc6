"""Datasets over HDF5, TFRecord and tar files: samples, shards, worker processes, and what is said of bad files."""

import gzip
import io
import json
import pickle
import struct
import tarfile
from itertools import chain
from pathlib import Path

import google_crc32c
import h5py
import numpy as np
import pytest
import torch
from tests.fixtures.resuming import run_folder as in_folder
from torch import nn

import cerebras_pytorch as cbt
from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_pytorch.data.files import shards, tfrecord
from cerebras_pytorch.utils.data import HDF5Dataset, TarDataset, TFRecordDataset

IMAGES = np.arange(12 * 4, dtype=np.float32).reshape(12, 4)
LABELS = np.arange(12, dtype=np.int64) % 3


def write_hdf5(path: Path, rows: slice = slice(None), **others) -> Path:
    with h5py.File(path, "w") as file:
        file["image"], file["label"] = IMAGES[rows], LABELS[rows]
        for name, value in others.items():
            del file[name]
            file[name] = value
    return path


def field(number: int, data: bytes) -> bytes:
    """A field of bytes as protobuf writes it."""
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def example(image: np.ndarray, label: int, name: bytes) -> bytes:
    """A `tf.train.Example` by the wire format, without a library."""
    features = {
        b"image": field(2, field(1, struct.pack("<4f", *image))),
        b"label": field(3, field(1, bytes([label]))),
        b"name": field(1, field(1, name)),
    }
    entries = b"".join(field(1, field(1, key) + field(2, value)) for key, value in features.items())
    return (
        bytes([1 << 3 | 2, len(entries) & 0x7F | 0x80, len(entries) >> 7]) + entries
        if len(entries) > 127
        else field(1, entries)
    )


def framed(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        checksum = google_crc32c.value(part)
        return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def write_tfrecord(path: Path, rows: range) -> Path:
    path.write_bytes(b"".join(framed(example(IMAGES[row], int(LABELS[row]), b"row %d" % row)) for row in rows))
    return path


def write_tar(path: Path, rows: range) -> Path:
    with tarfile.open(path, "w") as archive:
        for row in rows:
            image = io.BytesIO()
            np.save(image, IMAGES[row])
            meta = json.dumps({"row": row}).encode()
            for ending, data in (("image.npy", image.getvalue()), ("cls", b"%d" % LABELS[row]), ("json", meta)):
                member = tarfile.TarInfo(f"data/{row:04}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


def hdf5(folder: Path):
    write_hdf5(folder / "a-0.h5", slice(0, 5))
    write_hdf5(folder / "a-1.h5", slice(5, 12))
    return HDF5Dataset(str(folder / "a-*.h5"), ["image", "label"])


def tfrecords(folder: Path):
    files = [write_tfrecord(folder / "one", range(5)), write_tfrecord(folder / "two", range(5, 12))]
    return TFRecordDataset(files, transform=lambda_free)


def lambda_free(features):
    return features["image"], features["label"][0]


def tars(folder: Path):
    files = [write_tar(folder / "b-0.tar", range(5)), write_tar(folder / "b-1.tar", range(5, 12))]
    return TarDataset(files, ["image.npy", "cls"])


@pytest.mark.parametrize("make", [hdf5, tfrecords, tars])
def test_samples_of_shards_in_order_in_any_process(tmp_path, make):
    dataset = make(tmp_path)
    assert len(dataset) == 12
    for number in (0, 4, 5, 11, -1):
        image, label = dataset[number]
        assert torch.equal(image, torch.from_numpy(IMAGES[number]))
        assert int(label) == LABELS[number]
    with pytest.raises(IndexError):
        dataset[12]
    for kept in (dataset, pickle.loads(pickle.dumps(dataset))):
        loader = torch.utils.data.DataLoader(kept, 4, num_workers=2)
        images = torch.cat([images for images, _ in loader])
        assert torch.equal(images, torch.from_numpy(IMAGES))


def test_all_features_of_a_record_and_all_files_of_a_name(tmp_path):
    write_tfrecord(tmp_path / "one", range(2))
    (record,) = TFRecordDataset(tmp_path / "one", keys=["name"])[1]
    assert bytes(record.numpy()) == b"row 1"
    write_tar(tmp_path / "a.tar", range(2))
    sample = TarDataset(tmp_path / "a.tar", transform=dict)[1]
    assert sample["__key__"] == "data/0001"
    assert sample["json"] == {"row": 1}
    assert sample["cls"] == 1


def test_the_checksum_is_the_published_one():
    assert tfrecord._crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("make", [hdf5, tfrecords, tars])
def test_training_goes_on_by_position(tmp_path, make):
    """Three steps, an end and a resume see the batches of one go."""
    dataset = make(tmp_path)

    def run(folder, stop_after=None, **settings):
        seen = []
        with in_folder(folder), cbt.init_context() as context:
            context.set_run_config(cbt.utils.config.RunConfig(checkpoint_steps=1, **settings))
            torch.manual_seed(0)
            model, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            loader = cbt.utils.data.DataLoader(torch.utils.data.DataLoader(dataset, 3, shuffle=True))
            compiled = cbt.compile(model, optimizer, criterion, loader)
            for images, labels in loader:
                criterion(compiled(images), labels).backward()
                optimizer.step()
                seen.append(images[:, 0].tolist())
                if len(seen) == stop_after:
                    break
        return seen

    whole = run(tmp_path / "whole")
    assert sorted(chain.from_iterable(whole)) == IMAGES[:, 0].tolist()
    first = run(tmp_path / "cut", stop_after=2)
    assert first + run(tmp_path / "cut", autoload_last_checkpoint=True) == whole


def refusal(make) -> str:
    with pytest.raises(ReportedError) as caught:
        make()
    assert caught.value.report.code is ErrorCode.DATA_INVALID
    return str(caught.value)


def test_bad_files_are_told_by_file_and_place(tmp_path):
    pattern = str(tmp_path / "none-*.h5")
    assert "none-*.h5: no file has such a name" in refusal(lambda: HDF5Dataset(pattern, ["image"]))
    good = write_hdf5(tmp_path / "good.h5")
    assert "has no array 'imagee'" in (text := refusal(lambda: HDF5Dataset(good, ["imagee"])))
    assert "It has: image, label." in text
    ragged = write_hdf5(tmp_path / "ragged.h5", label=LABELS[:3])
    assert "image 12, label 3" in refusal(lambda: HDF5Dataset(ragged, ["image", "label"]))
    other = write_hdf5(tmp_path / "other.h5", image=IMAGES[:, :2])
    assert "rows of 'image' are float32[2] here, and float32[4]" in refusal(
        lambda: HDF5Dataset([good, other], ["image"])
    )
    (tmp_path / "text").write_text("no HDF5")
    assert "not a readable HDF5 file" in refusal(lambda: HDF5Dataset(tmp_path / "text", ["image"]))

    whole = write_tfrecord(tmp_path / "records", range(3)).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-3])
    assert "record 2 is cut off" in refusal(lambda: TFRecordDataset(tmp_path / "cut", ["image"]))
    (tmp_path / "flipped").write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    flipped = TFRecordDataset(tmp_path / "flipped", ["image"])
    assert "record 0, at byte 0, is damaged" in refusal(lambda: flipped[0])
    assert len(flipped[1][0]) == 4
    (tmp_path / "length").write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert "record 0, at byte 0, has a damaged header" in refusal(
        lambda: TFRecordDataset(tmp_path / "length", ["image"])
    )
    records = TFRecordDataset(tmp_path / "records", ["pixels"])
    assert "record 1 has no feature 'pixels'" in (text := refusal(lambda: records[1]))
    assert "It has: image, label, name." in text
    (tmp_path / "other").write_bytes(framed(b"\xff\xff"))
    assert "record 0 is no tf.train.Example" in refusal(lambda: TFRecordDataset(tmp_path / "other", ["image"])[0])

    archive = write_tar(tmp_path / "a.tar", range(3))
    assert "data/0002 has no file .png" in refusal(lambda: TarDataset(archive, ["png"])[2])
    assert "not a readable tar archive" in refusal(lambda: TarDataset(tmp_path / "text", ["png"]))
    with tarfile.open(tmp_path / "bad.tar", "w") as bad:
        member = tarfile.TarInfo("x.cls")
        member.size = 3
        bad.addfile(member, io.BytesIO(b"cat"))
    assert "x.cls cannot be read" in refusal(lambda: TarDataset(tmp_path / "bad.tar", ["cls"])[0])


def test_an_archive_that_lacks_samples_is_refused(tmp_path):
    """Python's reader of tar ends where a header is damaged or missing, and says nothing."""
    whole = write_tar(tmp_path / "a.tar", range(6)).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:
        begin = archive.getmembers()[9].offset
    for name, data in (("cut", whole[:begin]), ("header", whole[: begin + 100])):
        (tmp_path / name).write_bytes(data)
        text = refusal(lambda path=tmp_path / name: TarDataset(path, ["cls"]))
        assert f"{name}: is cut off: at byte {begin}, after 3 samples" in text
        assert "Fetch or write this file again" in text
    (tmp_path / "damaged").write_bytes(whole[:begin] + bytes([whole[begin] ^ 1]) + whole[begin + 1 :])
    assert f"is damaged: at byte {begin}, after 3 samples" in refusal(lambda: TarDataset(tmp_path / "damaged", ["cls"]))
    (tmp_path / "two").write_bytes(whole + whole)
    assert "goes on behind its end mark" in refusal(lambda: TarDataset(tmp_path / "two", ["cls"]))


def test_files_of_a_name_that_lie_apart_and_files_of_none(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("0.cls", "1.cls", "README", ".hidden.cls", "0.txt", "1.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(name[0].encode()))
    dataset = TarDataset(tmp_path / "a.tar", ["cls", "txt"])
    assert [dataset[number] for number in range(len(dataset))] == [(0, "0"), (1, "1")]


def test_more_shards_than_a_process_may_open(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_FILES", 2)
    files = [write_tfrecord(tmp_path / f"{row}", range(row, row + 1)) for row in range(6)]
    dataset = TFRecordDataset(files, ["image"])
    for number in (0, 1, 2, 1, 5, 0):
        assert torch.equal(dataset[number][0], torch.from_numpy(IMAGES[number]))
        assert len(dataset._shards._opened) <= 2
    assert list(dataset._shards._opened) == [5, 0]


def test_hdf5_rows_that_are_no_tensors_or_cannot_be_read(tmp_path):
    texts = write_hdf5(tmp_path / "texts.h5", label=np.array([b"cat"] * 12))
    assert "rows of 'label' are |S3, and no numbers" in refusal(lambda: HDF5Dataset(texts, ["label"]))
    one = write_hdf5(tmp_path / "one.h5", label=3)
    assert "'label' is one value, and has no rows" in refusal(lambda: HDF5Dataset(one, ["label"]))
    swapped = write_hdf5(tmp_path / "swapped.h5", image=IMAGES.astype(">f4"))
    assert torch.equal(HDF5Dataset(swapped, ["image"])[3][0], torch.from_numpy(IMAGES[3]))
    with h5py.File(tmp_path / "damaged.h5", "w") as file:
        chunk = file.create_dataset("image", data=IMAGES, chunks=(4, 4), fletcher32=True).id.get_chunk_info(1)
    data = bytearray((tmp_path / "damaged.h5").read_bytes())
    data[chunk.byte_offset] ^= 1
    (tmp_path / "damaged.h5").write_bytes(data)
    dataset = HDF5Dataset(tmp_path / "damaged.h5", ["image"])
    assert "row 4 of 'image' cannot be read" in refusal(lambda: dataset[4])
    assert torch.equal(dataset[3][0], torch.from_numpy(IMAGES[3]))


def test_what_is_given_in_place_of_files_and_names(tmp_path):
    good = write_hdf5(tmp_path / "good.h5")
    for make in (HDF5Dataset, TFRecordDataset, TarDataset):
        with pytest.raises(ValueError, match="keys is a list of one name or more"):
            make(good, "image")
    assert "is a folder" in refusal(lambda: HDF5Dataset(tmp_path, ["image"]))
    zipped = tmp_path / "records.gz"
    zipped.write_bytes(gzip.compress(write_tfrecord(tmp_path / "records", range(3)).read_bytes()))
    for make in (TFRecordDataset, TarDataset):
        assert "It is compressed: unpack it first" in refusal(lambda make=make: make(zipped, ["image"]))


def test_a_bad_record_in_a_worker_process_is_the_same_error(tmp_path):
    whole = write_tfrecord(tmp_path / "records", range(3)).read_bytes()
    (tmp_path / "flipped").write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    loader = torch.utils.data.DataLoader(TFRecordDataset(tmp_path / "flipped", ["image"]), 1, num_workers=1)
    text = refusal(lambda: next(iter(loader)))
    assert "record 0, at byte 0, is damaged (its checksum differs) [data.invalid]" in text
    assert "Traceback" not in text


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    write_hdf5(tmp_path / "good.h5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ReportedError, match=r"pip install 'cerebras-emulator-pytorch\[hdf5\]'"):
        HDF5Dataset(tmp_path / "good.h5", ["image"])
