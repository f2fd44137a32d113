"""Streams over HTTP: server-sent events, each with one response as JSON, or an error.

An event is a line `data: ...` and an empty line.  The first response determines the status; a later
error is an event, and the stream continues.  So is the first error of a model with Triton's
`generate_stream`.  The end of the body is the end of the stream.

Source: WHATWG HTML, "Server-sent events"; Triton generate extension; MLServer's `infer_stream`;
docs/protocols/open-inference.md, "10. Streams".
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.protocols.oip.errors import HTTP_OK
from gateway.protocols.oip.json.parse import dump
from gateway.wire.http import Buffer, Headers, HttpResponse

EVENT_HEADERS: Final = Headers((("Content-Type", "text/event-stream; charset=utf-8"),))
EVENT_STREAM: Final = HttpResponse(HTTP_OK, EVENT_HEADERS)
"""A stream without events."""


def event(*text: Buffer, status: int = HTTP_OK) -> HttpResponse:
    """Return one event, a part of a response; *text* has no line ends."""
    return HttpResponse(status, EVENT_HEADERS, (b"data: ", *text, b"\n\n"))


def json_event(document: Mapping[str, Any], status: int = HTTP_OK) -> HttpResponse:
    """Return one event whose data is *document*."""
    return event(dump(document), status=status)
