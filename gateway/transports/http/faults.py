"""HttpError: responses of HTTP itself, before a protocol is known.

A request with an invalid head, with a path that no frontend claims or with a body that arrives too
slowly has no codec to encode the error.  Its response is `{"error": "..."}` with an HTTP status.
`failure` is the response to an unexpected error.
"""

import json

import structlog

from gateway.ir.errors import GatewayError, InvalidRequest
from gateway.telemetry.log.error_texts import error_text
from gateway.wire.http import Headers, HttpResponse

log = structlog.get_logger(__name__)

_TEXT_MAX = 500


class HttpError(Exception):
    """A request that reaches no frontend.

    Args:
        status: The HTTP status of the response.
        message: Its text.
        limit: The YAML name of the limit that was exceeded.
        close: Whether the connection cannot be used again.
    """

    def __init__(
        self, status: int, message: str, *, limit: str | None = None, close: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.limit = limit
        self.should_close = close

    @property
    def error(self) -> GatewayError:
        """The same error as a `GatewayError`, for metrics and logs."""
        return InvalidRequest(self.message, limit=self.limit)

    @property
    def response(self) -> HttpResponse:
        """The error as a response."""
        return text_response(self.status, self.message)


def connection_refused_response(message: str) -> bytes:
    """Return the response to a connection above a limit, whatever it requests."""
    body = json.dumps({"error": message[:_TEXT_MAX]}).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


def text_response(status: int, message: str, request_id: str = "") -> HttpResponse:
    """Return a response with *status*, whose JSON body has *message*, clipped."""
    body = json.dumps({"error": message[:_TEXT_MAX]}).encode()
    headers = Headers((("Content-Type", "application/json"),))
    return HttpResponse(status, headers, (body,), request_id=request_id)


def failure(error: BaseException | None) -> HttpResponse:
    """Log an unexpected error, and return the response to it."""
    if isinstance(error, GatewayError):
        log.warning("stream aborted", code=error.code.value, error=error_text(error))
        return text_response(500, error.message)
    log.error("internal error", exc_info=error)
    return text_response(500, "internal error of the gateway")
