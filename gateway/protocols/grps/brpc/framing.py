"""Frames of baidu_std: cuts a byte stream into frames, and reads and writes their metadata.

The payload of a frame is the complete frame, header included.  The framer handles the correlation
id: it reads the id from incoming frames and writes it into outgoing ones.  So codecs ignore it, and
an error for an unreadable call still reaches its caller.  The framer also writes the time that a
caller has left, which changes until a frame is sent.

Source: docs/protocols/grps.md, "12. brpc frames".
"""

import time
from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import Final

from google.protobuf.message import DecodeError

from gateway.ir.errors import GatewayError, MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.protocols.grps.brpc.compression import NONE, unpacked_bytes
from gateway.schema.baidu_std_pb2 import RpcMeta
from gateway.wire.http import Buffer, view_of
from gateway.wire.protobuf.wire_format import LEN, VARINT, read_varint, tag, varint
from gateway.wire.stream import Frame

MAGIC: Final = b"PRPC"

_SIZES: Final = Struct(">II")
_HEADER: Final = 12
_META_BYTES: Final = 64 * 1024
_REQUEST: Final = varint(tag(1, LEN))
_TIMEOUT_MS: Final = varint(tag(8, VARINT))
_CORRELATION: Final = varint(tag(4, VARINT))
_LONGEST_MS: Final = (1 << 31) - 1


def looks_like(first: bytes) -> bool:
    """Return whether a connection that begins with *first* may be of baidu_std.

    Four bytes decide; fewer bytes must be a prefix of them.
    """
    return first[:4] == MAGIC[: len(first[:4])]


def frame_bytes(meta: bytes, message: list[Buffer]) -> list[Buffer]:
    """Return a frame of metadata and message, the message not copied."""
    size = len(meta) + sum([memoryview(part).nbytes for part in message])
    return [MAGIC + _SIZES.pack(size, len(meta)) + meta, *message]


def words(value: str | bytes) -> str:
    """Return a text of the metadata, which may be bytes that are not UTF-8 (protobuf 2).

    Such bytes become U+FFFD.
    """
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def split_frame(view: memoryview) -> tuple[RpcMeta, memoryview]:
    """Return the metadata of a complete frame, and the rest: message and attachment.

    Raises:
        MalformedMessage: It is not a frame.
    """
    if len(view) < _HEADER or bytes(view[:4]) != MAGIC:
        raise MalformedMessage(f"{len(view)} bytes are not a baidu_std frame")
    body, size = _SIZES.unpack_from(view, 4)
    if size > body or len(view) != _HEADER + body:
        raise MalformedMessage(f"a baidu_std frame of {len(view)} bytes declares {body} and {size}")
    return _meta(view[_HEADER : _HEADER + size]), view[_HEADER + size :]


class BaiduFramer:
    """Cuts a byte stream into baidu_std frames; has the state of one connection.

    Args:
        limits: `message_bytes` is the limit on the bytes after a header.
        server: Of a server's connection.  Frames without a correlation id are not sent, since a
            response to no request must not be sent: brpc closes such a connection.  Frames have
            the size of their decompressed message.
        clock: Monotonic seconds; a caller's timeout counts from the frame's arrival, and the time
            left of a deadline is computed when the frame is sent.
    """

    def __init__(
        self,
        limits: MessageLimits,
        *,
        server: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_server = server
        self._most = limits.message_bytes
        self._clock = clock
        self._held = bytearray()
        self._need = 1
        self._fault: GatewayError | None = None
        self._has_begun = False

    @property
    def wanted(self) -> int:
        """Bytes of the incomplete frame, as far as they are known; 0 between frames."""
        return max(self._need, _HEADER) if self._held else 0

    @property
    def held(self) -> int:
        """Bytes of it that have come."""
        return len(self._held)

    @property
    def fault(self) -> GatewayError | None:
        """The error after which nothing more can be read; None for none."""
        return self._fault

    def receive(self, data: bytes, /) -> list[Frame]:
        """Return the frames that *data* completes; b"" is the end of the stream.

        A header is checked as soon as it arrives, its magic byte by byte.  A frame that arrives in
        one piece is a view of it; others are collected as they arrive.

        Raises:
            MalformedMessage: The stream is of another protocol, ends inside a frame, or has
                unreadable metadata: brpc closes such a connection without a response.
            TooLarge: A frame declares more than the limit.
        """
        if self._fault is not None:
            raise self._fault
        if not data:
            if self._held:
                raise MalformedMessage(
                    f"stream ended after {len(self._held)} bytes of a baidu_std frame"
                )
            return []
        if not self._held:
            return self._cut(data)
        self._held += data
        return [] if len(self._held) < self._need else self._cut(self._held)

    def send(self, frame: Frame, /) -> list[Buffer]:
        """Return the buffers of *frame*, with its correlation id and time left in the metadata.

        Without an id the frame is sent unchanged, or not at all.

        Raises:
            MalformedMessage: The payload is not a frame.
        """
        if frame.correlation is None and self._is_server:
            return []
        buffers = list(frame.payload) if frame.correlation is None else self._numbered(frame)
        if self._has_begun:
            self._has_begun = False
            buffers[0] = memoryview(buffers[0])[len(MAGIC) :]
        return buffers

    def incomplete(self) -> Frame | None:
        """Return the header and the metadata of the incomplete frame, once they have arrived."""
        if len(self._held) < _HEADER:
            return None
        end = _HEADER + _SIZES.unpack_from(self._held, 4)[1]
        if len(self._held) < end:
            return None
        view = memoryview(bytes(self._held[:end]))
        try:
            return Frame((view,), _meta(view[_HEADER:]).correlation_id)
        except MalformedMessage:
            return Frame((view,))  # the complete frame raises it

    def begin(self) -> bytes:
        """Return the magic of the next frame; `send` leaves it out then."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return MAGIC

    def _numbered(self, frame: Frame) -> list[Buffer]:
        payload = list(frame.payload)
        first = bytes(payload[0]) if payload else b""
        if len(first) < _HEADER or len(first) < _HEADER + _SIZES.unpack_from(first, 4)[1]:
            first, payload = b"".join(payload), [b""]
        if len(first) < _HEADER:
            raise MalformedMessage(f"payload of {len(first)} bytes is not a baidu_std frame")
        body, size = _SIZES.unpack_from(first, 4)
        end = _HEADER + size
        meta = first[_HEADER:end]
        if frame.deadline is not None:
            meta = _timed(meta, frame.deadline - self._clock())
        # Of a field that occurs twice the last counts.
        meta += _CORRELATION + varint(frame.correlation or 0)
        sizes = _SIZES.pack(body - size + len(meta), len(meta))
        return [b"".join((MAGIC, sizes, meta, first[end:])), *payload[1:]]

    def _cut(self, data: bytes | bytearray) -> list[Frame]:
        frames: list[Frame] = []
        start, end = 0, len(data)
        while start < end:
            try:
                self._need = self._needed(bytes(data[start : start + _HEADER]))
                if end - start < self._need:
                    break
                view = memoryview(data).toreadonly()
                frames.append(self._frame(view[start : start + self._need]))
            except GatewayError as fault:
                self._fault = fault
                if not frames:
                    raise
                break  # the frames before the error are returned
            start += self._need
        if start or data is not self._held:  # frames are views of the old buffer: use a new one
            self._held = bytearray(data[start:])
        return frames

    def _needed(self, header: bytes) -> int:
        """Return how many bytes the next check needs, or the size of the complete frame."""
        if not looks_like(header):
            raise MalformedMessage(
                f"frame begins with {header[:4]!r}: expected {MAGIC!r} of baidu_std"
            )
        if len(header) < _HEADER:
            return len(header) + 1 if len(header) < len(MAGIC) else _HEADER
        body, size = _SIZES.unpack_from(header, 4)
        if body > self._most:
            raise TooLarge(
                f"frame declares {body} bytes, at most {self._most} are allowed",
                limit="message_bytes",
            )
        if size > body:
            raise MalformedMessage(f"frame of {body} bytes declares {size} bytes of metadata")
        if size > _META_BYTES:
            raise TooLarge(
                f"frame declares {size} bytes of metadata, at most {_META_BYTES} are allowed",
                limit="message_bytes",
            )
        return _HEADER + int(body)

    def _frame(self, view: memoryview) -> Frame:
        end = _HEADER + _SIZES.unpack_from(view, 4)[1]
        meta = _meta(view[_HEADER:end])
        timeout_ms = meta.request.timeout_ms
        deadline = self._clock() + timeout_ms / 1000 if timeout_ms > 0 else None
        extra = 0
        # Responses of an upstream do not count against the limits of clients.
        if self._is_server and meta.compress_type != NONE:
            message = view[end : max(end, len(view) - max(meta.attachment_size, 0))]
            extra = unpacked_bytes(meta.compress_type, message, self._most)
        return Frame((view,), meta.correlation_id, deadline, extra)


def server_framer(limits: MessageLimits) -> BaiduFramer:
    """Return the framer of a server's connection."""
    return BaiduFramer(limits, server=True)


def credentials(frame: Frame) -> tuple[str, str]:
    """Return the authentication data of a request, and the method that it calls.

    Both are "" where the metadata cannot be read: decoding reports that.
    """
    view = view_of(frame.payload)
    try:
        meta = _meta(view[_HEADER : _HEADER + _SIZES.unpack_from(view, 4)[1]])
    except (MalformedMessage, StructError):
        return "", ""
    method = f"{words(meta.request.service_name)}.{words(meta.request.method_name)}"
    return words(meta.authentication_data), method


def without_credentials(frame: Frame) -> Frame:
    """Return a copy of a complete request frame without its authentication data."""
    meta, message = split_frame(view_of(frame.payload))
    meta.ClearField("authentication_data")
    payload = b"".join(frame_bytes(meta.SerializeToString(), [message]))
    return Frame(
        (memoryview(payload),), frame.correlation, frame.deadline, frame.extra_bytes, frame.client
    )


def _timed(meta: bytes, left_s: float) -> bytes:
    """Return the metadata of a request with the time its caller has left, in whole ms."""
    if not meta.startswith(_REQUEST):
        return meta
    size, start = read_varint(meta, len(_REQUEST))
    field = _TIMEOUT_MS + varint(min(max(int(left_s * 1000), 1), _LONGEST_MS))
    end = start + size
    return b"".join((_REQUEST, varint(size + len(field)), meta[start:end], field, meta[end:]))


def _meta(view: memoryview) -> RpcMeta:
    meta = RpcMeta()
    try:
        meta.ParseFromString(bytes(view))
        if meta.IsInitialized():
            return meta
    except DecodeError:
        pass  # the error follows
    raise MalformedMessage(f"{len(view)} bytes of metadata are not an RpcMeta of baidu_std")
