"""MetricsPage: `/metrics` on the address of a listener, for platforms that know one port."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import orjson

from gateway.ir.context import Client
from gateway.ir.errors import Forbidden, GatewayError
from gateway.transports.contract import HttpFrontend
from gateway.wire.errors import HTTP_STATUS, allowed_methods
from gateway.wire.heads.request_id import attach_http_request_id, http_request_id
from gateway.wire.http import Headers, HttpRequest, HttpResponse, response_parts, with_headers

NAME: Final = "metrics"
"""What stands for the protocol, for the log and for rules."""
PATH: Final = "/metrics"
"""The only path of the page."""

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the page and its content type, by the `accept` of a request."""

_JSON: Final = Headers((("Content-Type", "application/json"),))
_READING: Final = frozenset({"GET", "HEAD"})


class MetricsPage(HttpFrontend):
    """Replies to GET with the metrics.

    Args:
        page: Returns the page.
        check: Checks whether a client may read it. Raises Forbidden.
        reject: Counts and logs a request that is refused; returns its id.
    """

    def __init__(
        self,
        page: Page,
        check: Callable[[Client], None],
        reject: Callable[[str, GatewayError], str],
    ) -> None:
        self._page = page
        self._check = check
        self._reject = reject

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Yield the page."""
        for part in response_parts(await self._response(wire)):
            yield part

    async def handle(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Return the page."""
        return self(wire)

    async def _response(self, wire: HttpRequest) -> HttpResponse:
        try:
            self._check(wire.client)
        except Forbidden as error:
            error.client, error.request_id = wire.client, http_request_id(wire) or ""
            return self.reject(error)
        if wire.path.rstrip("/") != PATH:
            return _error(404, f"nothing is served at {wire.path[:200]!r}")
        if wire.method not in _READING:
            text = f"method {wire.method} is not allowed; expected GET"
            return with_headers(_error(405, text), (("Allow", allowed_methods(("GET",))),))
        body, content_type = await self._page(wire.headers.get("accept") or "")
        return HttpResponse(200, Headers((("Content-Type", content_type),)), (body,))

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Return the response to a request that is refused."""
        error.wire_status = HTTP_STATUS[error.code]
        return attach_http_request_id(
            _error(error.wire_status, error.message), self._reject(NAME, error)
        )


def _error(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, _JSON, (orjson.dumps({"error": text}),))
