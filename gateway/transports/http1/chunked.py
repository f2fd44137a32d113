"""ChunkReader: reads chunked bodies incrementally, without I/O.

It is strict where parsers differ: sizes are hexadecimal digits only, every line ends with CR LF,
and anything but a chunk or a trailer field is rejected.  Extensions and trailers are ignored,
within limits.

Source: RFC 9112, section 7.1.
"""

import re
from typing import Final

from gateway.ir.errors import MalformedMessage

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SIZE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})(;"
    + _TOKEN
    + rb"(=("
    + _TOKEN
    + rb'|"[\t\x20-\x21\x23-\x5b\x5d-\x7e]*"))?)*',
    re.ASCII,
)
_FIELD: Final = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*", re.ASCII)
_LINE_BYTES: Final = 4096
_TRAILER_BYTES: Final = 16 * 1024
_HEX: Final = 16
_SHOWN: Final = 40
_TURN_LINES: Final = 1024

_SIZE_LINE, _DATA, _DATA_END, _TRAILER, _DONE = range(5)


class ChunkReader:
    """Reads one body.

    Attributes:
        chunks: That have ended, the last and empty one left out.
        is_done: The end was read.
    """

    def __init__(self) -> None:
        self._state = _SIZE_LINE
        self._line = b""
        self._remaining = 0
        self._trailer_bytes = 0
        self.chunks = 0
        self.is_done = False

    def feed(self, data: bytes, at: int) -> tuple[list[memoryview], int]:
        """Parse *data* from *at*, for one turn: as many chunks as cost one or two milliseconds.

        Returns:
            Pieces of the body, which are views of *data*; and the position after the parsed data.
            It is before the end only if the body or the turn has ended.

        Raises:
            MalformedMessage: The framing is broken.
        """
        pieces: list[memoryview] = []
        view = memoryview(data)
        end = len(data)
        lines = _TURN_LINES
        while at < end and self._state != _DONE and lines:
            if self._state == _DATA:
                stop = min(end, at + self._remaining)
                pieces.append(view[at:stop])
                self._remaining -= stop - at
                at = stop
                if not self._remaining:
                    self._state = _DATA_END
                continue
            lines -= 1
            line, at = self._read_line(data, at)
            if line is not None:
                self._parse_size_line(line)
        return pieces, at

    def _read_line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Return a line without its end, or None if it is incomplete; and the position after it."""
        found = data.find(b"\n", at)
        stop = len(data) if found < 0 else found + 1
        line = self._line + data[at:stop]
        if len(line) > _LINE_BYTES:
            raise MalformedMessage(
                f"a line between chunks has more than {_LINE_BYTES} bytes, which is not allowed"
            )
        if found < 0:
            self._line = line
            return None, stop
        self._line = b""
        if not line.endswith(b"\r\n"):
            raise MalformedMessage("a line between chunks ends with LF; expected CR LF")
        return line[:-2], stop

    def _parse_size_line(self, line: bytes) -> None:
        if self._state == _DATA_END:
            if line:
                raise MalformedMessage(f"a chunk is longer than its size: {line[:_SHOWN]!r}")
            self.chunks += 1
            self._state = _SIZE_LINE
        elif self._state == _SIZE_LINE:
            found = _SIZE.fullmatch(line)
            if found is None:
                raise MalformedMessage(f"malformed chunk size: {line[:_SHOWN]!r}")
            self._remaining = int(found[1], _HEX)
            self._state = _DATA if self._remaining else _TRAILER
        elif not line:
            self._state = _DONE
            self.is_done = True
        else:
            self._trailer_bytes += len(line)
            if _FIELD.fullmatch(line) is None or self._trailer_bytes > _TRAILER_BYTES:
                raise MalformedMessage(f"a trailer is {line[:_SHOWN]!r}")
