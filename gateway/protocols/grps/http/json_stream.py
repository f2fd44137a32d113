"""Streams of answers over HTTP, cut into messages: JSON values one after another, nothing between.

Servers write a message at a time, intermediaries cut anew; so the end of a value is found in the
text.  A stream that does not begin with a brace is bytes as they are, piece by piece.

Source: docs/protocols/grps.md, "10. Streams over HTTP".
"""

from __future__ import annotations

import re
from typing import Final

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.wire.http import Headers, HttpResponse

JSON_PIECE: Final = Headers((("Content-Type", "application/json"),))
BYTES_PIECE: Final = Headers((("Content-Type", "application/octet-stream"),))

_OUTSIDE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'["\\]')
_SPACE: Final = b" \t\r\n"
_OPENING: Final = b"{["


class JsonStreamSplitter:
    """Turns the parts of one streamed answer into whole messages.

    Args:
        limits: `json_bytes` is the most of one message that is held.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._most = limits.json_bytes
        self._held = bytearray()
        self._at = 0
        self._depth = 0
        self._quoted = False
        self._raw = False
        self._started = False
        self._failed: HttpResponse | None = None

    def receive(self, part: HttpResponse, /) -> list[HttpResponse]:
        """Return the messages that *part* completes, each with the content type it has.

        An answer with an HTTP status of failure is one message, whatever it holds, at its end.

        Raises:
            MalformedMessage: There is something else between JSON values.
            TooLarge: A value is longer than the limit.
        """
        if part.status != 200:  # noqa: PLR2004
            self._failed = part
            self._hold(part.view)
            return []
        data = bytes(part.view)
        if not self._held and not self._raw:
            stripped = data.lstrip(_SPACE)
            if self._started or stripped[:1] == b"{":
                data = stripped
        if not data:
            return []
        if self._raw or not (self._started or data[:1] == b"{"):
            self._raw = True
            return [HttpResponse(part.status, BYTES_PIECE, (data,))]
        self._started = True
        self._held += data
        self._check_begin()
        found = []
        while (value := self._next()) is not None:
            found.append(HttpResponse(part.status, JSON_PIECE, (value,)))
        self._hold(b"")
        return found

    def end(self) -> list[HttpResponse]:
        """Return the answer that failed, if one did.

        Raises:
            MalformedMessage: The stream ends within a message.
        """
        if self._failed is not None:
            return [HttpResponse(self._failed.status, self._failed.headers, (bytes(self._held),))]
        if self._held:
            raise MalformedMessage(f"the stream ended after {len(self._held)} bytes of a message")
        return []

    def _hold(self, data: bytes | memoryview) -> None:
        self._held += data
        if len(self._held) > self._most:
            raise TooLarge(
                f"a streamed message has over {len(self._held)} bytes of JSON, at most "
                f"{self._most} are allowed",
                limit="json_bytes",
            )

    def _next(self) -> bytes | None:
        """Return the next whole value; None when there is none yet."""
        held = self._held
        while True:
            match = (_INSIDE if self._quoted else _OUTSIDE).search(held, self._at)
            if match is None:
                self._at = len(held)
                return None
            found = match.group()
            if found == b"\\":
                if match.end() == len(held):
                    self._at = match.start()  # what it escapes is not here yet
                    return None
                self._at = match.end() + 1
                continue
            self._at = match.end()
            if found == b'"':
                self._quoted = not self._quoted
            elif found in _OPENING:
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return self._taken()

    def _taken(self) -> bytes:
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
                f"a stream of messages has {bytes(self._held[:16])!r} between them: expected an "
                "object of JSON"
            )
