"""Cuts streams of responses over HTTP into messages: JSON values without separators.

Intermediaries change the parts of a stream, so the parser finds the end of each value in the text.
A stream that does not begin with a brace is bytes, passed on part by part.

Source: docs/protocols/grps.md, "10. Streams over HTTP".
"""

import re
from typing import Final

from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.wire.http import Headers, HttpResponse
from gateway.wire.response_parts import HeldParts

JSON_PIECE: Final = Headers((("Content-Type", "application/json"),))
BYTES_PIECE: Final = Headers((("Content-Type", "application/octet-stream"),))

_OUTSIDE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'["\\]')
_SPACE: Final = b" \t\r\n"
_OPENING: Final = b"{["


class JsonStreamSplitter:
    """Converts the parts of one streamed response into complete messages.

    Args:
        limits: `json_bytes` is the limit on one message.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._parts = HeldParts(limits, "a message")
        self._held = self._parts.data
        self._at = 0
        self._depth = 0
        self._is_quoted = False
        self._is_raw = False
        self._has_started = False

    def receive(self, part: HttpResponse, /) -> list[HttpResponse]:
        """Return the messages that *part* completes, each with its content type.

        A response with the HTTP status of a failure is one message, returned at its end.

        Raises:
            MalformedMessage: JSON values have something between them.
            TooLarge: A value exceeds the limit.
        """
        if part.status != 200:  # noqa: PLR2004
            return self._parts.fail(part)
        data = bytes(part.view)
        if not self._held and not self._is_raw:
            stripped = data.lstrip(_SPACE)
            if self._has_started or stripped[:1] == b"{":
                data = stripped
        if not data:
            return []
        if self._is_raw or not (self._has_started or data[:1] == b"{"):
            self._is_raw = True
            return [HttpResponse(part.status, BYTES_PIECE, (data,))]
        self._has_started = True
        self._held += data
        self._check_begin()
        found = []
        while (value := self._next()) is not None:
            found.append(HttpResponse(part.status, JSON_PIECE, (value,)))
        self._parts.check()
        return found

    def end(self) -> list[HttpResponse]:
        """Return the response that was not a stream; none for a stream.

        Raises:
            MalformedMessage: The stream ends within a message.
        """
        return self._parts.end()

    def _next(self) -> bytes | None:
        """Return the next complete value; None when it is incomplete."""
        held = self._held
        while True:
            match = (_INSIDE if self._is_quoted else _OUTSIDE).search(held, self._at)
            if match is None:
                self._at = len(held)
                return None
            found = match.group()
            if found == b"\\":
                if match.end() == len(held):
                    self._at = match.start()  # the escaped character has not arrived
                    return None
                self._at = match.end() + 1
                continue
            self._at = match.end()
            if found == b'"':
                self._is_quoted = not self._is_quoted
            elif found in _OPENING:
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return self._take_value()

    def _take_value(self) -> bytes:
        value = bytes(self._held[: self._at])
        del self._held[: self._at]
        while self._held[:1] and self._held[:1] in _SPACE:
            del self._held[:1]
        self._at = 0
        self._check_begin()
        return value

    def _check_begin(self) -> None:
        if self._held and self._held[:1] != b"{":
            raise MalformedMessage(
                f"stream has {bytes(self._held[:16])!r} between messages: expected a JSON object"
            )
