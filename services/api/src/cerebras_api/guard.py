"""What stands before every route: the host and origin checks, and the access log."""

import time
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cerebras_api.errors import error_response
from cerebras_contract.errors import ErrorCode, ErrorReport

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

log = structlog.get_logger()


class Guard:
    """Refuses requests for a host that is not ours (a web page that rebound its name to this machine) and
    changes asked for by a web page of another origin; notes each request without query or headers."""

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...]) -> None:
        self._app = app
        self._allowed_hosts = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at, status = time.monotonic(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        try:
            await (error_response(refusal, 403) if refusal else self._app)(scope, receive, note_status)
        finally:
            milliseconds = round(1000 * (time.monotonic() - started_at))
            log.info("request", method=scope["method"], path=scope["path"], status=status, ms=milliseconds)

    def _refusal(self, method: str, headers: Headers) -> ErrorReport | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(f"//{host}"):
            return _refused("the Host header names a host that this API does not serve")
        if origin is not None and method not in SAFE_METHODS and not self._is_ours(origin):
            return _refused("a web page of another origin may not change anything here")
        return None

    def _is_ours(self, url: str) -> bool:
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return (f"[{host}]" if ":" in host else host) in self._allowed_hosts


def _refused(message: str) -> ErrorReport:
    advice = "Use the URL in the cluster's connection.json, or add the host to CEREBRAS_ALLOWED_HOSTS."
    return ErrorReport(code=ErrorCode.REQUEST_INVALID, message=message, advice=advice)
