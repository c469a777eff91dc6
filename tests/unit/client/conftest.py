"""A stand-in API on the loopback, and a client that does not wait for it."""

import sys
from collections.abc import Callable, Iterator

import pytest
from tests.unit.client.stand_in import API_KEY, StandIn, serve

from cerebras_cloud.cli.main import main
from cerebras_cloud.client import Client
from cerebras_cloud.connection import Endpoint
from cerebras_cloud.transport import Patience
from cerebras_contract.cluster import API_KEY_VARIABLE, HOME_VARIABLE, URL_VARIABLE

AT_ONCE = Patience(attempts=3, first_delay_seconds=0, longest_delay_seconds=0)


@pytest.fixture(autouse=True)
def no_cluster_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever runs the tests may have a cluster."""
    for name in (URL_VARIABLE, API_KEY_VARIABLE, HOME_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("user")))


@pytest.fixture(scope="session")
def server() -> Iterator[tuple[StandIn, str]]:
    """One server for all tests: its state, and its URL."""
    state = StandIn()
    with serve(state) as url:
        yield state, url


@pytest.fixture
def stand_in(server: tuple[StandIn, str]) -> StandIn:
    """The server's state, as new."""
    state, _ = server
    vars(state).update(vars(StandIn()))
    return state


@pytest.fixture
def endpoint(stand_in: StandIn, server: tuple[StandIn, str]) -> Endpoint:
    _, url = server
    return Endpoint(url, API_KEY)


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Client]:
    with Client(endpoint, AT_ONCE) as opened:
        yield opened


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `cerebras-cloud` with these words, in this process; the exit status."""

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["cerebras-cloud", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


@pytest.fixture
def connected(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """The environment of a user of the stand-in."""
    monkeypatch.setenv(URL_VARIABLE, endpoint.url)
    monkeypatch.setenv(API_KEY_VARIABLE, endpoint.api_key)
    return endpoint
