"""Bad input gets a clear error, an exit status, and loses nothing."""

import json

import pytest

pytestmark = pytest.mark.e2e


def test_an_unknown_key_names_file_line_and_the_nearest_key(cluster, mnist):
    (mnist / "run.yaml").write_text("runconfig:\n  max_stepz: 3\n")
    result = cluster.run("submit", "train.py", "--config", "run.yaml", folder=mnist)
    assert result.returncode == 2
    assert "run.yaml:2: unknown key 'runconfig.max_stepz'" in result.stderr
    assert "Did you mean 'max_steps'?" in result.stderr


def test_a_wrong_type_names_file_line_and_value(cluster, mnist):
    (mnist / "run.yaml").write_text("runconfig:\n  max_steps: many\n")
    result = cluster.run("submit", "train.py", "--config", "run.yaml", folder=mnist)
    assert result.returncode == 2
    assert "run.yaml:2: runconfig.max_steps" in result.stderr
    assert "'many'" in result.stderr


def test_a_script_that_raises_shows_its_traceback_and_fails(cluster, tmp_path):
    (tmp_path / "train.py").write_text("def f():\n    raise ValueError('no luck')\n\nf()\n")
    result = cluster.run("submit", "train.py", folder=tmp_path)
    assert result.returncode == 1
    assert "Traceback" in result.stdout
    assert "ValueError: no luck" in result.stdout
    assert "train.py:2: ValueError: no luck" in result.stderr
    with cluster.client() as client:
        job = next(iter(client.jobs.list(limit=1)))
        assert job.error is not None
        assert (job.error.message, job.error.file, job.error.line) == ("ValueError: no luck", "train.py", 2)


def test_a_script_that_raises_only_in_phase_execute_shows_its_traceback(cluster, mnist):
    script = (mnist / "train.py").read_text()
    (mnist / "train.py").write_text(script.replace("model.train()", "raise RuntimeError('after compile')"))
    result = cluster.run("submit", "train.py", "--config", "run.yaml", folder=mnist)
    assert result.returncode == 1
    assert result.stdout.count("Compiling model...") == 1
    assert result.stdout.rstrip().endswith("RuntimeError: after compile")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("submit", "no-such.py"), "no-such.py does not exist"),
        (("submit", "train.py", "--config", "no-such.yaml"), "no-such.yaml"),
        (("submit", "train.py", "--root", "no-such-folder"), "no-such-folder"),
        (("submit", "train.py", "--config", "run.yaml", "--system", "cs-9"), "cs-1, cs-2, cs-3"),
    ],
)
def test_a_missing_thing_is_named(cluster, mnist, words, named):
    result = cluster.run(*words, folder=mnist)
    assert result.returncode == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr


def test_a_job_that_does_not_exist_is_said_so(cluster):
    result = cluster.run("logs", "job-000000000000")
    assert result.returncode == 4
    assert "job-000000000000" in result.stderr


def test_a_wrong_api_key_is_refused(cluster):
    connection = json.loads((cluster.home / "connection.json").read_text())
    given = {"CEREBRAS_CLOUD_URL": connection["url"], "CEREBRAS_CLOUD_API_KEY": "wrong-key"}
    environment = {**cluster.environment, **given}
    result = type(cluster)(cluster.home, environment).run("jobs", "list")
    assert result.returncode == 3
    assert "key" in result.stderr.lower()
    assert "wrong-key" not in result.stderr


def test_a_cluster_that_is_not_running_says_how_to_start_it(cluster, tmp_path):
    environment = {**cluster.environment, "CEREBRAS_CLOUD_HOME": str(tmp_path / "nowhere")}
    result = type(cluster)(tmp_path, environment).run("jobs", "list")
    assert result.returncode == 5
    assert len(result.stderr.strip().splitlines()) == 1
    assert "cerebras-cloud up --detach" in result.stderr
