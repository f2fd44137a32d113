"""MetricsPage: `/metrics` on the address of a listener, for platforms that know one port."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import orjson

from gateway.ir.errors import ErrorCode, GatewayError
from gateway.transports.contract import HttpFrontend
from gateway.wire.http import Headers, HttpRequest, HttpResponse

PATH: Final = "/metrics"
"""The only path of the page."""

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the page and its content type, by the `accept` of a request."""

_JSON: Final = Headers((("Content-Type", "application/json"),))
_READING: Final = frozenset({"GET", "HEAD"})
_STATUS: Final = {ErrorCode.OVERLOADED: 503, ErrorCode.TOO_LARGE: 413}


class MetricsPage(HttpFrontend):
    """Replies to GET with the metrics.

    Args:
        page: Returns the page.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    async def __call__(self, wire: HttpRequest, /) -> AsyncGenerator[HttpResponse, None]:
        """Yield the page."""
        yield await self.handle(wire)

    async def handle(self, wire: HttpRequest, /) -> HttpResponse:
        """Return the page."""
        if wire.path.rstrip("/") != PATH:
            return _error(404, f"nothing is served at {wire.path[:200]!r}")
        if wire.method not in _READING:
            return _error(405, f"method {wire.method} is not allowed; expected GET")
        body, content_type = await self._page(wire.headers.get("accept") or "")
        return HttpResponse(200, Headers((("Content-Type", content_type),)), (body,))

    def reject(self, error: GatewayError, /) -> HttpResponse:
        """Return the response to a malformed request, or to one for which there is no room."""
        return _error(_STATUS.get(error.code, 400), error.message)


def _error(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, _JSON, (orjson.dumps({"error": text}),))
