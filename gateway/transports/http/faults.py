"""Answers that HTTP itself gives, before any protocol has a say.

A request whose head is wrong, whose path nobody claims or whose body comes too slowly has no
codec to word the error: these do it, as `{"error": "..."}`, and carry HTTP's own statuses.
"""

from __future__ import annotations

import json

from gateway.ir.errors import GatewayError, InvalidRequest
from gateway.wire.http import Headers, HttpResponse

_TEXT_MAX = 500


class HttpError(Exception):
    """A request that no frontend answers.

    Args:
        status: HTTP status of the answer.
        message: Its text.
        limit: YAML name of the limit that was exceeded, for its counter.
        close: The connection cannot be used again.
    """

    def __init__(
        self, status: int, message: str, *, limit: str | None = None, close: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.limit = limit
        self.close = close

    @property
    def error(self) -> GatewayError:
        """The fault in our taxonomy, for whoever counts refusals."""
        return InvalidRequest(self.message, limit=self.limit)

    @property
    def response(self) -> HttpResponse:
        """The fault as an answer."""
        return text_response(self.status, self.message)


def connection_refused_response(message: str) -> bytes:
    """Return what a connection that is one too many is told, whatever it asks."""
    body = json.dumps({"error": message[:_TEXT_MAX]}).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


def text_response(status: int, message: str) -> HttpResponse:
    """Return an answer of *status* whose JSON body holds *message*, clipped."""
    body = json.dumps({"error": message[:_TEXT_MAX]}).encode()
    return HttpResponse(status, Headers((("Content-Type", "application/json"),)), (body,))
