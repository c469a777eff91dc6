"""Downloads: a folder appears complete, or not at all."""

import os

import pytest
from tests.unit.client.stand_in import JOB_ID

from cerebras_cloud.errors import BadInput, ConnectionLost, DownloadDamaged
from cerebras_cloud.files import _checked

FILES = {"checkpoint.json": b"{}", "model.safetensors": os.urandom(300_000), "empty": b"", "deep/a b.bin": b"x"}


@pytest.fixture(autouse=True)
def some_files(stand_in):
    stand_in.files = dict(FILES)


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_latest_checkpoint_is_downloaded_whole(client, tmp_path):
    folder = client.checkpoints.download(JOB_ID, to=tmp_path / "new")
    assert folder == tmp_path / "new" / "step_3"
    assert content(folder) == FILES
    assert list(folder.parent.iterdir()) == [folder]


def test_a_file_that_breaks_off_is_fetched_again(client, stand_in, tmp_path):
    stand_in.cuts.extend([0, 1, 10**9, 10**9, 10**9, 100_000])
    assert content(client.checkpoints.download(JOB_ID, 2, tmp_path)) == FILES


def test_a_download_outlives_an_api_that_restarts(client, stand_in, tmp_path):
    stand_in.faults.extend([0, 503, 502])
    assert content(client.checkpoints.download(JOB_ID, 2, tmp_path)) == FILES


def test_damage_is_refused_and_leaves_nothing(client, stand_in, tmp_path):
    stand_in.damaged.add("model.safetensors")
    with pytest.raises(DownloadDamaged, match="model.safetensors arrived with sha256"):
        client.checkpoints.download(JOB_ID, to=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_is_lost_leaves_nothing(client, stand_in, tmp_path):
    stand_in.cuts.extend([10**9, 0, 0, 0])
    with pytest.raises(ConnectionLost):
        client.checkpoints.download(JOB_ID, to=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_not_overwritten(client, tmp_path):
    (tmp_path / "step_3").mkdir()
    with pytest.raises(BadInput, match="step_3 exists already"):
        client.checkpoints.download(JOB_ID, to=tmp_path)


def test_a_step_without_a_checkpoint_is_refused_with_those_there_are(client, stand_in, tmp_path):
    with pytest.raises(BadInput, match="no checkpoint of step 7. There are: 2, 3"):
        client.checkpoints.download(JOB_ID, 7, tmp_path)
    stand_in.files = {}
    with pytest.raises(BadInput, match="has no checkpoint. `checkpoint_steps`"):
        client.checkpoints.download(JOB_ID, to=tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "."])
def test_no_file_lands_outside_the_folder(name):
    with pytest.raises(DownloadDamaged, match="outside the folder"):
        _checked(name)
