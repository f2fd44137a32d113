"""Cuts streams of server-sent events over HTTP into events.

An event is a line `data: ...` and an empty line.

Source: WHATWG HTML, "Server-sent events".
"""

import re
from typing import Final

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.wire.http import Headers, HttpResponse

_OK: Final = 200
_JSON_HEADERS: Final = Headers((("Content-Type", "application/json"),))
_END: Final = re.compile(rb"\r?\n\r?\n")
_LONGEST_END: Final = 4
_LINES: Final = re.compile(rb"\r?\n")
_DATA: Final = b"data:"


class EventSplitter:
    """Cuts an upstream's events out of the parts of its response; each is a response of its own.

    Args:
        limits: `json_bytes` is the limit on one event.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._most = limits.json_bytes
        self._held = bytearray()
        self._searched = 0
        self._failed: HttpResponse | None = None

    def receive(self, part: HttpResponse, /) -> list[HttpResponse]:
        """Return the events that *part* completes; a failure that is no stream comes at its end.

        Triton's stream has another status if it begins with an error.

        Raises:
            TooLarge: An event exceeds the limit.
        """
        held = self._held
        held += part.view
        found: list[HttpResponse] = []
        if part.status != _OK and not is_event_stream(part):
            self._failed = part
            self._check_held()
            return found
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
        """Return the response that was not a stream; none for a stream.

        Raises:
            MalformedMessage: The stream ends within an event.
        """
        if self._failed is not None:
            return [HttpResponse(self._failed.status, self._failed.headers, (bytes(self._held),))]
        if self._held.strip():
            raise MalformedMessage(
                f"stream ended after {len(self._held)} bytes of an event, which begins with "
                f"{bytes(self._held[:16])!r}"
            )
        return []

    def _check_held(self) -> None:
        if len(self._held) > self._most:
            raise TooLarge(
                f"event of the upstream has over {self._most} bytes, which are allowed",
                limit="json_bytes",
            )


def is_event_stream(part: HttpResponse) -> bool:
    """Return whether a response is a stream of events."""
    return (part.headers.get("content-type") or "").startswith("text/event-stream")


def _data_of(text: bytes) -> bytes | None:
    """Return the data of an event; None where it has only comments and other fields."""
    lines = [line for line in _LINES.split(text) if line.startswith(_DATA)]
    if not lines:
        return None
    return b"\n".join(line[len(_DATA) :].removeprefix(b" ") for line in lines)
