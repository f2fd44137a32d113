"""Cuts streams of server-sent events over HTTP into events.

An event is a line `data: ...` and an empty line; the last one may end with the stream.

Source: WHATWG HTML, "Server-sent events".
"""

import re
from typing import Final

from gateway.ir.limits import MessageLimits
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.response_parts import HeldParts

_OK: Final = 200
_JSON_HEADERS: Final = Headers((("Content-Type", "application/json"),))
_LINE_END: Final = rb"(?:\r\n|\n|\r(?!\n))"
_END: Final = re.compile(_LINE_END + rb"(?:\r\n|\n|\r)")
_LONGEST_END: Final = 4
_LINES: Final = re.compile(_LINE_END)
_DATA: Final = b"data:"
_COMMENT: Final = b":"


class Event(HttpResponse, frozen=True, kw_only=True):
    """The data of an event, as a response; of a comment none.

    Attributes:
        whole: The event as it came, with the headers of its stream.
    """

    whole: HttpResponse


class EventSplitter:
    """Cuts an upstream's events out of the parts of its response; each is a response of its own.

    Args:
        limits: `json_bytes` is the limit on one event.
        has_comments: Comments are events, too.
    """

    def __init__(self, limits: MessageLimits, *, has_comments: bool = False) -> None:
        self._held = HeldParts(limits, "an event")
        self._has_comments = has_comments
        self._searched = 0
        self._headers = Headers()

    def receive(self, part: HttpResponse, /) -> list[HttpResponse]:
        """Return the events that *part* completes; a response that is no stream comes at its end.

        Triton's stream has another status if it begins with an error, and a server that knows no
        streams replies with one document.

        Raises:
            TooLarge: An event exceeds the limit.
        """
        if is_json(part) or (part.status != _OK and not is_event_stream(part)):
            return self._held.fail(part)
        self._headers = part.headers
        held = self._held.data
        held += part.view
        found: list[HttpResponse] = []
        while (end := _END.search(held, self._searched)) is not None:
            found += self._events(bytes(held[: end.end()]), end.start())
            del held[: end.end()]
            self._searched = 0
        self._searched = max(0, len(held) - _LONGEST_END)
        self._held.check()
        return found

    def end(self) -> list[HttpResponse]:
        """Return the last event, if it ends with the stream, or the response that was no stream.

        Raises:
            MalformedMessage: The stream ends within a line that is no data.
        """
        held = bytes(self._held.data)
        last = [] if self._held.is_failure else self._events(held, len(held))
        return last or self._held.end()

    def _events(self, text: bytes, end: int) -> list[HttpResponse]:
        """Return the event that is the *text* up to *end*; none if it is only other fields."""
        data = event_data(text[:end])
        if data is None and not (self._has_comments and text.lstrip().startswith(_COMMENT)):
            return []
        came = HttpResponse(_OK, self._headers, (text,))
        return [Event(_OK, _JSON_HEADERS, (data or b"",), whole=came)]


def is_event_stream(part: HttpResponse) -> bool:
    """Return whether a response is a stream of events."""
    return _kind_of(part).startswith("text/event-stream")


def is_json(part: HttpResponse) -> bool:
    """Return whether a response is one document of JSON."""
    return _kind_of(part).startswith("application/json")


def _kind_of(part: HttpResponse) -> str:
    return (part.headers.get("content-type") or "").lower()


def event_data(text: bytes) -> bytes | None:
    """Return the data of the event *text*; None where it has only comments and other fields."""
    lines = [line for line in _LINES.split(text) if line.startswith(_DATA)]
    if not lines:
        return None
    return b"\n".join(line[len(_DATA) :].removeprefix(b" ") for line in lines)
