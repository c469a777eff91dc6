"""HTTP to the API: the key, timeouts, retries with backoff, and errors as the contract reports them."""

import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from cerebras_cloud.connection import Endpoint
from cerebras_cloud.errors import ApiError, BadInput, ConnectionLost
from cerebras_contract.errors import ErrorCode, ErrorReport
from cerebras_contract.wire import API_PREFIX, IDEMPOTENCY_HEADER, ErrorResponse

RETRIED_STATUSES = frozenset({502, 503, 504})
JOB_ID = re.compile(r"[\w-]+", re.ASCII)
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Patience:
    """How long the client waits and how often it tries again. All in seconds but `attempts`."""

    connect_seconds: float = 5
    read_seconds: float = 60
    attempts: int = 5
    first_delay_seconds: float = 0.2
    longest_delay_seconds: float = 4
    stream_silence_seconds: float = 40
    """A stream is pinged every 15 s; silent for longer than this, its connection is taken for dead."""
    lost_after_seconds: float = 60
    """Without any contact for this long, a follow gives up."""

    def delay_seconds(self, attempt: int) -> float:
        """Pause after attempt number `attempt` (from 0): doubling, with jitter so that clients spread out."""
        longest = min(self.longest_delay_seconds, self.first_delay_seconds * 2.0**attempt)
        return longest * random.uniform(0.5, 1)  # noqa: S311 - jitter needs no secrecy


class Transport:
    """Sends requests to one cluster. Paths are below `/v1`."""

    def __init__(self, endpoint: Endpoint, patience: Patience) -> None:
        self.url = endpoint.url
        self._home_option = endpoint.home_option
        self.patience = patience
        try:
            self._http = httpx.Client(
                base_url=endpoint.url + API_PREFIX,
                headers={"Authorization": f"Bearer {endpoint.api_key}"},
                timeout=httpx.Timeout(patience.read_seconds, connect=patience.connect_seconds),
                # A proxy of the environment cannot reach this machine's own loopback.
                trust_env=urlsplit(endpoint.url).hostname not in LOOPBACK_HOSTS,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise BadInput(f"{endpoint.url!r} is not a URL ({error}).") from None

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        file: BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send, again after a lost connection or a 502, 503 or 504, and return a successful answer.

        Every request here may be sent twice: the methods are idempotent, and a POST that makes something
        carries an Idempotency-Key. Raises `ApiError` for a refusal, `ConnectionLost` when none got through.
        """
        for attempt in range(self.patience.attempts):
            if attempt:
                time.sleep(self.patience.delay_seconds(attempt - 1))
            if file is not None:
                file.seek(0)
            content = file if file is not None else body
            try:
                response = self._http.request(method, path, params=params, content=content, headers=headers)
            except httpx.TransportError as error:
                reason = _reason(error)
                continue
            if response.is_success:
                return response
            if response.status_code not in RETRIED_STATUSES:
                raise api_error(response)
            reason = f"HTTP {response.status_code}"
        raise self.connection_lost(reason)

    @contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, read_seconds: float | None = None
    ) -> Iterator[httpx.Response]:
        """Open a streamed GET once, without retries.

        Raises `ApiError` for a refusal; `ConnectionLost` for a connection that cannot be made or breaks, and for
        a 502, 503 or 504.
        """
        timeout = httpx.Timeout(read_seconds or self.patience.read_seconds, connect=self.patience.connect_seconds)
        try:
            with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                if response.status_code in RETRIED_STATUSES:
                    raise self.connection_lost(f"HTTP {response.status_code}")
                if not response.is_success:
                    response.read()
                    raise api_error(response)
                yield response
        except httpx.TransportError as error:
            raise self.connection_lost(_reason(error)) from None

    def connection_lost(self, reason: str) -> ConnectionLost:
        """The error for an API that does not answer."""
        return ConnectionLost(
            f"cannot reach the cluster at {self.url} ({reason}). "
            f"See `cerebras-cloud status{self._home_option}`; "
            f"start it with `cerebras-cloud up --detach{self._home_option}`."
        )


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def job_path(job_id: str, *parts: str) -> str:
    """The path of a job, or of something of it. An id with a slash would be another path: `BadInput`."""
    if not JOB_ID.fullmatch(job_id):
        raise BadInput(f"{job_id!r} is not a job's id. `cerebras-cloud jobs list` shows those there are.")
    return "/".join(["/jobs", job_id, *parts])


def idempotent(key: str) -> dict[str, str]:
    """The header that makes a POST safe to send twice."""
    return {IDEMPOTENCY_HEADER: key}


def api_error(response: httpx.Response) -> ApiError:
    """The report of an answer that is not a success, also where something between sent its own page."""
    try:
        report = ErrorResponse.model_validate_json(response.content).error
    except ValidationError:
        request = response.request
        report = ErrorReport(
            code=ErrorCode.INTERNAL,
            message=f"{request.method} {request.url.path} was answered with HTTP {response.status_code}",
            advice="The answer is not of a cluster's API: check the URL, and proxies between here and there.",
        )
    return ApiError(report, response.status_code)
