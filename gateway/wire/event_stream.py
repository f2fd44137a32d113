"""Cuts streams of server-sent events over HTTP into events.

An event is a line `data: ...` and an empty line; the last one may end with the stream.

Source: WHATWG HTML, "Server-sent events".
"""

import re
from typing import Final

from gateway.ir.limits import MessageLimits
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.response_parts import PartsSplitter

_OK: Final = 200
_JSON_HEADERS: Final = Headers((("Content-Type", "application/json"),))
_LINE_END: Final = rb"(?:\r\n|\n|\r(?!\n))"
_END: Final = re.compile(_LINE_END + rb"(?:\r\n|\n|\r)")
_LONGEST_END: Final = 4
_LINES: Final = re.compile(_LINE_END)
_DATA: Final = b"data:"


class EventSplitter(PartsSplitter):
    """Cuts an upstream's events out of the parts of its response; each is a response of its own.

    Args:
        limits: `json_bytes` is the limit on one event.
    """

    def __init__(self, limits: MessageLimits) -> None:
        super().__init__(limits, "an event")
        self._searched = 0

    def receive(self, part: HttpResponse, /) -> list[HttpResponse]:
        """Return the events that *part* completes; a failure that is no stream comes at its end.

        Triton's stream has another status if it begins with an error.

        Raises:
            TooLarge: An event exceeds the limit.
        """
        if part.status != _OK and not is_event_stream(part):
            return self._fail(part)
        held = self._held
        held += part.view
        found: list[HttpResponse] = []
        while (end := _END.search(held, self._searched)) is not None:
            data = _data_of(bytes(held[: end.start()]))
            del held[: end.end()]
            self._searched = 0
            if data is not None:
                found.append(HttpResponse(_OK, _JSON_HEADERS, (data,)))
        self._searched = max(0, len(held) - _LONGEST_END)
        self._check_held()
        return found

    def end(self) -> list[HttpResponse]:
        """Return the last event, if it ends with the stream, or the response that was no stream.

        Raises:
            MalformedMessage: The stream ends within a line that is no data.
        """
        data = None if self._failed is not None else _data_of(bytes(self._held))
        return super().end() if data is None else [HttpResponse(_OK, _JSON_HEADERS, (data,))]


def is_event_stream(part: HttpResponse) -> bool:
    """Return whether a response is a stream of events."""
    return (part.headers.get("content-type") or "").lower().startswith("text/event-stream")


def _data_of(text: bytes) -> bytes | None:
    """Return the data of an event; None where it has only comments and other fields."""
    lines = [line for line in _LINES.split(text) if line.startswith(_DATA)]
    if not lines:
        return None
    return b"\n".join(line[len(_DATA) :].removeprefix(b" ") for line in lines)
