"""Where the cluster is: what is given, else the environment, else the home."""

import shlex

import pytest

from cerebras_cloud.connection import Endpoint, find_endpoint
from cerebras_cloud.errors import BadInput, NotRunning
from cerebras_contract.cluster import API_KEY_VARIABLE, HOME_VARIABLE, URL_VARIABLE, Connection


def make_home(folder, url):
    folder.mkdir(parents=True)
    (folder / "connection.json").write_text(Connection(url=url).model_dump_json())
    (folder / "api_key").write_text(f"key-of-{folder.name.strip('.')}\n")
    return folder


def test_a_given_home_wins_over_the_environment_and_that_over_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    make_home(tmp_path / ".cerebras-cloud", "http://default")
    assert find_endpoint() == Endpoint("http://default", "key-of-cerebras-cloud")
    monkeypatch.setenv(HOME_VARIABLE, str(make_home(tmp_path / "other", "http://other")))
    assert find_endpoint() == Endpoint("http://other", "key-of-other")
    monkeypatch.setenv(URL_VARIABLE, "http://remote/")
    monkeypatch.setenv(API_KEY_VARIABLE, "key-of-remote\n")
    assert find_endpoint() == Endpoint("http://remote", "key-of-remote")
    given = make_home(tmp_path / "given", "http://given")
    assert find_endpoint(given) == Endpoint("http://given", "key-of-given")


def test_a_url_without_a_key_is_refused(monkeypatch):
    monkeypatch.setenv(URL_VARIABLE, "http://remote")
    with pytest.raises(BadInput, match=API_KEY_VARIABLE):
        find_endpoint()


@pytest.mark.parametrize("name", ["home", "a home's"])
def test_a_cluster_that_is_not_up_is_started_by_the_command_in_the_error(tmp_path, name):
    home = tmp_path / name
    with pytest.raises(NotRunning) as error:
        find_endpoint(home)
    _, _, command = str(error.value).partition("Start one: ")
    assert shlex.split(command) == ["cerebras-cloud", "up", "--detach", "--home", str(home)]
    assert "\n" not in str(error.value)


def test_the_default_home_needs_no_option(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    with pytest.raises(NotRunning, match="up --detach$"):
        find_endpoint()


def test_a_damaged_connection_is_said_so(tmp_path):
    home = make_home(tmp_path / "home", "http://x")
    (home / "connection.json").write_text("{")
    with pytest.raises(BadInput, match=r"connection.json is damaged: `cerebras-cloud down`"):
        find_endpoint(home)
