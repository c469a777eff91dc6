"""`submit --from-checkpoint`: a job that goes on from another's."""

import pytest
from tests.unit.client.stand_in import JOB_ID


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print()")
    return str(path)


@pytest.mark.parametrize(("said", "step"), [(JOB_ID, 3), (f"{JOB_ID}:2", 2)])
def test_the_latest_checkpoint_or_the_one_of_a_step(connected, stand_in, command, script, said, step):
    stand_in.files = {"model.safetensors": b"weights"}
    assert command("submit", script, "--from-checkpoint", said, "--detach") == 0
    (spec,) = stand_in.specs.values()
    assert spec.from_checkpoint is not None
    assert (spec.from_checkpoint.job, spec.from_checkpoint.step) == (JOB_ID, step)


def test_without_it_a_job_begins_anew(connected, stand_in, command, script):
    assert command("submit", script, "--detach") == 0
    (spec,) = stand_in.specs.values()
    assert spec.from_checkpoint is None


@pytest.mark.parametrize(
    ("said", "message"),
    [(f"{JOB_ID}:last", "expected JOB or JOB:STEP"), (f"{JOB_ID}:7", "no checkpoint of step 7. There are: 2, 3")],
)
def test_what_is_no_checkpoint_is_refused_before_anything_is_sent(
    connected, stand_in, command, script, capfd, said, message
):
    stand_in.files = {"model.safetensors": b"weights"}
    assert command("submit", script, "--from-checkpoint", said) == 2
    assert message in capfd.readouterr().err
    assert not stand_in.bundles
