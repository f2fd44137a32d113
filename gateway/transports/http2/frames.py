"""Frames of HTTP/2 as bytes: kinds, flags, error codes, and how each is written.

Source: RFC 9113.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.accelerator import accelerated
from gateway.wire.http import Buffer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client begins with."""


def may_be_http2(first: bytes) -> bool:
    """Return whether a connection that begins with *first* speaks HTTP/2, or may still do so."""
    return first[: len(PREFACE)] == PREFACE[: len(first)]


DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20
LAST_HEADERS: Final = END_HEADERS | END_STREAM

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
SETTINGS_TIMEOUT: Final = 4
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
CONNECT_ERROR: Final = 10
ENHANCE_YOUR_CALM: Final = 11
INADEQUATE_SECURITY: Final = 12
HTTP_1_1_REQUIRED: Final = 13

_CODE_NAMES: Final = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
MAX_WINDOW: Final = (1 << 31) - 1
LARGEST_FRAME: Final = (1 << 24) - 1

FRAME_BYTES: Final = 1 << 20
"""The size limit of a frame that is received."""

FRAME_HEAD: Final = struct.Struct(">BHBBI")
"""Length in two parts, kind, flags, stream."""

HEAD_BYTES: Final = 9
COPIED_BYTES: Final = 4096
"""A copy of so few bytes costs less than a view of a view."""

SMALL_FRAME_BYTES: Final = 256
"""A smaller DATA frame that ends no message is charged like an empty one."""

UPDATE_BYTES: Final = 13
"""The size of a WINDOW_UPDATE with its head."""

_pack, _unpack = FRAME_HEAD.pack, FRAME_HEAD.unpack_from
_SETTING = struct.Struct(">HI")
_UPDATE = struct.Struct(">BHBBII")
_TWO = struct.Struct(">II")


class Http2ConnectionError(Exception):
    """The peer violated HTTP/2, and the connection must end.

    Args:
        code: The error code of the GOAWAY frame.
        message: What is wrong.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Http2StreamError(Exception):
    """The peer violated HTTP/2 on one stream only.

    Args:
        code: The error code of the RST_STREAM frame.
        message: What is wrong.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class MissingPseudoHeaders(Http2StreamError):
    """Header fields without a pseudo-header field: no request, but they may be its trailers."""


def frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the nine bytes before a payload of *size* bytes."""
    return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


CompleteStream = tuple[int, bytes, int, int, bytes | None, int, int]
"""A stream: its number, its header block, begin and end of its content, the block of its trailers,
the position after it, and by how much the peer opens its window."""


def complete_stream(data: bytes, at: int, max_block: int) -> CompleteStream | None:
    """Parse the frames of a stream that has arrived completely.

    They are HEADERS, one DATA frame with content, and trailers if this frame does not end the
    stream. Clients of gRPC's C core send a WINDOW_UPDATE of the stream before its content.

    Args:
        data: Frames.
        at: Position of the first.
        max_block: The size limit of a header block.

    Returns:
        None for other frames, and for frames that are incomplete.
    """
    number, flags, first, after = _payload(data, at, HEADERS)
    if flags != END_HEADERS or not 0 < number <= MAX_WINDOW or not 0 < after - first <= max_block:
        return None
    block = data[first:after]
    opened = opened_by(data, after, number)
    if opened:
        after += UPDATE_BYTES
    same, flags, begin, stop = _payload(data, after, DATA)
    if same != number or flags | END_STREAM != END_STREAM or stop == begin:
        return None
    if flags:
        return number, block, begin, stop, None, stop, opened
    same, flags, start, end = _payload(data, stop, HEADERS)
    if same != number or flags != LAST_HEADERS or end - start > max_block:
        return None
    return number, block, begin, stop, data[start:end], end, opened


def opened_by(data: bytes, at: int, number: int) -> int:
    """Return by how much the frame at *at* opens the window of a stream; 0 for another frame.

    Args:
        data: Frames.
        at: Position of the frame.
        number: The stream; 0 for the connection.
    """
    same, _, begin, end = _payload(data, at, WINDOW_UPDATE)
    if same != number or end - begin != UPDATE_BYTES - HEAD_BYTES:
        return 0
    return int.from_bytes(data[begin:end], "big") & MAX_WINDOW


def content(data: bytes, begin: int, stop: int) -> memoryview:
    """Return a part of received data; a small one is copied, and does not keep the rest."""
    if stop - begin <= COPIED_BYTES:
        return memoryview(data[begin:stop])
    return memoryview(data)[begin:stop]


@accelerated
def copy_data(
    data: Buffer, at: int, number: int, rest: int, window: int, room: memoryview
) -> tuple[int, int, int, int, bool]:
    """Copy the content of consecutive DATA frames of a stream, which are not small or padded.

    A frame that ends the stream is copied only if a part of it remains.

    Args:
        data: Frames.
        at: Position of the first, or of the rest of one whose beginning was copied before.
        number: The stream.
        rest: The size of that rest; 0 for none.
        window: How many bytes the frames after it may have together.
        room: Where the content belongs.

    Returns:
        The position after what was copied, the number of bytes that were copied, the size of the
        frames that were begun, how many bytes of the last one remain, and whether it ends the
        stream.
    """
    view, size, free = memoryview(data), len(data), len(room)
    copied = begun = 0
    is_last = False
    while copied < free:
        if not rest:
            if size - at < HEAD_BYTES:
                break
            high, low, kind, flags, same = _unpack(data, at)
            length = high << 16 | low
            if kind != DATA or flags > END_STREAM or same != number:
                break
            is_last = flags == END_STREAM
            if not SMALL_FRAME_BYTES <= length <= window - begun or (
                is_last and length <= free - copied
            ):
                break
            begun += length
            rest = length
            at += HEAD_BYTES
        step = min(rest, size - at, free - copied)
        room[copied : copied + step] = view[at : at + step]
        copied += step
        at += step
        rest -= step
        if rest:
            break
    return at, copied, begun, rest, is_last and rest > 0


def _payload(data: bytes, at: int, kind: int) -> tuple[int, int, int, int]:
    """Return stream and flags of a frame, and where its payload is; zeros for another frame."""
    begin = at + HEAD_BYTES
    if begin <= len(data):
        high, low, found, flags, number = _unpack(data, at)
        end = begin + (high << 16 | low)
        if found == kind and end <= len(data):
            return number, flags, begin, end
    return 0, 0, 0, 0


@accelerated
def join_stream(
    number: int, block: bytes, buffers: Sequence[Buffer], size: int, tail: bytes | None
) -> bytes:
    """Return the frames of a complete stream; each part has less than 64 KiB.

    Args:
        number: The stream.
        block: The header block.
        buffers: The content.
        size: The size of the content.
        tail: The block of the trailers; None to end the stream with the content.
    """
    parts: list[Buffer] = [_pack(0, len(block), HEADERS, END_HEADERS, number), block]
    parts += (_pack(0, size, DATA, END_STREAM if tail is None else 0, number), *buffers)
    if tail is not None:
        parts += (_pack(0, len(tail), HEADERS, LAST_HEADERS, number), tail)
    return b"".join(parts)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings of a frame, in order. Raises Http2ConnectionError."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return _UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream, size)


def reset(stream: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return _UPDATE.pack(0, 4, RST_STREAM, 0, stream, code)


def goaway(last: int, code: int, message: str = "") -> bytes:
    """Return a GOAWAY frame; *last* is the highest stream that will be processed."""
    return frame(GOAWAY, 0, 0, _TWO.pack(last, code) + message.encode()[:200])


def read_two(payload: bytes) -> tuple[int, int]:
    """Return the two numbers that a GOAWAY frame begins with, the stream's bit aside."""
    last, code = _TWO.unpack_from(payload)
    return last & MAX_WINDOW, code


def code_name(code: int) -> str:
    """Return the name of an error code, or its number."""
    return _CODE_NAMES[code] if code < len(_CODE_NAMES) else str(code)
