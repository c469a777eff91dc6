"""Health checks: each says what is wrong, or None."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import httpx
import valkey
from pydantic import ValidationError

from cerebras_contract.wire import API_PREFIX, ClusterView, Health

ANSWER_SECONDS = 5
HealthCheck = Callable[[], str | None]


@dataclass(frozen=True)
class Addresses:
    """Where the services listen, and the secrets to ask them with."""

    api_url: str
    api_key: str = field(repr=False)
    valkey_port: int
    valkey_password: str = field(repr=False)


def health_checks(addresses: Addresses) -> dict[str, HealthCheck]:
    """The check of each service, by its name."""
    return {
        "valkey": partial(_valkey_problem, addresses),
        "api": partial(_api_problem, addresses),
        "compile-worker": partial(_worker_problem, addresses, "compile-worker"),
        "run-worker": partial(_worker_problem, addresses, "run-worker"),
    }


def _valkey_problem(addresses: Addresses) -> str | None:
    connection = valkey.Valkey(
        host="127.0.0.1",
        port=addresses.valkey_port,
        password=addresses.valkey_password,
        socket_timeout=ANSWER_SECONDS,
        retry=None,
    )
    try:
        with closing(connection):
            connection.ping()
    except valkey.ValkeyError as error:
        return str(error)
    return None


def _api_problem(addresses: Addresses) -> str | None:
    try:
        health = Health.model_validate_json(_get(addresses, "/health"))
    except (httpx.HTTPError, ValidationError) as error:
        return _first_line(error)
    return None if health.status == "ok" else f"database: {health.database}, queue: {health.queue}"


def _worker_problem(addresses: Addresses, name: str) -> str | None:
    try:
        cluster = ClusterView.model_validate_json(_get(addresses, "/cluster"))
    except (httpx.HTTPError, ValidationError) as error:
        return f"the API does not tell: {_first_line(error)}"
    if any(worker.name == name and worker.alive for worker in cluster.workers):
        return None
    return "the API has not heard of it lately"


def _get(addresses: Addresses, path: str) -> bytes:
    # No proxy of the environment: this is our own loopback.
    with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False) as http:
        headers = {"Authorization": f"Bearer {addresses.api_key}"}
        return http.get(addresses.api_url + API_PREFIX + path, headers=headers).raise_for_status().content


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
