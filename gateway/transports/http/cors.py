"""Requests of web pages of other origins (CORS): preflights, and what their scripts may read.

Cookies and other credentials of a browser are never allowed, so a page sends what it knows itself.

Source: Fetch, "HTTP CORS protocol".
"""

from collections.abc import Callable, Iterable
from typing import Final

from gateway.transports.http.faults import text_response
from gateway.wire.http import ExtendedHeaders, Headers, HttpRequest, HttpResponse

ANY: Final = "*"
_METHODS: Final = "GET, HEAD, POST, PUT"
KEY_HEADER: Final = "x-api-key"
_ALLOWED: Final = (
    "authorization",
    "content-type",
    "custom-metadata",
    "endpoint-load-metrics-format",
    "grpc-timeout",
    "inference-header-content-length",
    "nv-inferrequest",
    "return-ndarray",
    "traceparent",
    "tracestate",
    "x-request-id",
    "x-request-timeout",
)
_EXPOSED: Final = (
    "endpoint-load-metrics",
    "inference-header-content-length",
    "nv-inferresponse",
    "nv-request-id",
    "nv-status",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "www-authenticate",
    "x-bd-error-code",
    "x-request-id",
)
_VARY: Final = ("Vary", "Origin")


class CorsRules:
    """Which origins may use a listener.

    Args:
        origins: As browsers send them, such as "https://app.example.com", or "*" for all.
        max_age_s: How long browsers remember the answer to a preflight.
        key_header: Returns the header with an API key, in lower case.
        sent: Further headers that pages may send.
        read: Further headers of responses that pages may read.
    """

    def __init__(
        self,
        origins: Iterable[str],
        max_age_s: float,
        key_header: Callable[[], str] = lambda: KEY_HEADER,
        *,
        sent: Iterable[str] = (),
        read: Iterable[str] = (),
    ) -> None:
        self._origins = frozenset(origin.lower() for origin in origins)
        self._allows_all = ANY in self._origins
        self._max_age = str(int(max_age_s))
        self._key_header = key_header
        self._sent = (*_ALLOWED, *sent)
        self._exposed = ", ".join(dict.fromkeys((*_EXPOSED, *read)))

    def allows(self, origin: str) -> bool:
        """Return whether pages of *origin* may use the listener."""
        return self._allows_all or origin.lower() in self._origins

    async def preflight(self, wire: HttpRequest) -> HttpResponse:
        """Return the response to a preflight, without the fields of every response."""
        origin = wire.headers.get("origin") or ""
        if not self.allows(origin):
            return text_response(403, f"pages of {origin!r} may not use this address")
        allowed = ", ".join(dict.fromkeys((*self._sent, self._key_header())))
        permission = (
            ("Access-Control-Allow-Methods", _METHODS),
            ("Access-Control-Allow-Headers", allowed),
            ("Access-Control-Max-Age", self._max_age),
        )
        return HttpResponse(204, Headers(permission))

    def shared(self, response: HttpResponse, origin: str | None) -> HttpResponse:
        """Return a response that scripts of *origin* may read, if it is allowed."""
        more: tuple[tuple[str, str], ...] = (_VARY,)
        if origin is not None and self.allows(origin):
            more += (
                ("Access-Control-Allow-Origin", ANY if self._allows_all else origin),
                ("Access-Control-Expose-Headers", self._exposed),
            )
        return HttpResponse(
            response.status,
            ExtendedHeaders(response.headers, more),
            response.body,
            is_compressible=response.is_compressible,
            request_id=response.request_id,
        )


def is_preflight(method: str, headers: Headers) -> bool:
    """Return whether a request asks, for a page, what it may send."""
    return (
        method == "OPTIONS"
        and headers.get("origin") is not None
        and headers.get("access-control-request-method") is not None
    )
