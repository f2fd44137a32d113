"""The oracle of brpc tests: baidu_std and grps's messages from the standard library, nothing of ours.

Frames, metadata and messages are written and read field by field, so that what our codec and framer
do is compared with an independent implementation.  It is also a client, which `tests/interop` runs
in a process of its own.

Source: docs/protocols/grps.md, "12. brpc frames".
"""

from __future__ import annotations

import gzip
import socket
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

FULL_NAME = "grps.protos.v1.GrpsBrpcService"
SHORT_NAME = "GrpsBrpcService"

NONE, SNAPPY, GZIP, ZLIB = range(4)
SUCCESS, FAILURE = 1, 2

UINT8, INT8, INT16, INT32, INT64, FLOAT16, FLOAT32, FLOAT64, STRING = range(1, 10)

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_SIGN = 1 << 63
_HEADER = struct.Struct(">4sII")
_FLOATS = {FLOAT16: "f", FLOAT32: "f", FLOAT64: "d"}

Fields = dict[int, list[Any]]


def varint(value: int) -> bytes:
    """Write an integer; a negative one takes ten bytes."""
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def put(number: int, value: int | bytes | str) -> bytes:
    """Write one field."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | _LENGTH) + varint(len(data)) + data


def fields(data: bytes) -> Fields:
    """Read the fields of a message, by number."""
    found: Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        else:
            size = {_EIGHT: 8, _FOUR: 4}.get(kind)
            if size is None:
                assert kind == _LENGTH, f"wire type {kind}"
                size, at = _varint(data, at)
            value = data[at : at + size]
            assert len(value) == size, "a field is cut short"
            at += size
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def signed(value: int) -> int:
    """Read a varint as int64."""
    return value - 2 * _SIGN if value & _SIGN else value


# -- messages


@dataclass(frozen=True)
class Tensor:
    """A tensor of grps in plain values."""

    name: str
    kind: int
    shape: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Message:
    """What a GrpsMessage holds.

    Attributes:
        status: code, msg and flag; None where there is none.
    """

    model: str = ""
    status: tuple[int, str, int] | None = None
    data: bytes | None = None
    text: str | None = None
    tensors: tuple[Tensor, ...] | None = None


def message(
    model: str = "",
    tensors: Iterable[Tensor] | None = None,
    *,
    text: str | None = None,
    data: bytes | None = None,
) -> bytes:
    """Write a GrpsMessage."""
    out = put(2, model) if model else b""
    if data is not None:
        out += put(3, data)
    if text is not None:
        out += put(4, text)
    if tensors is not None:
        out += put(5, b"".join(put(1, _tensor(each)) for each in tensors))
    return out


def _tensor(tensor: Tensor) -> bytes:
    out = put(1, tensor.name) if tensor.name else b""
    out += put(2, tensor.kind)
    if tensor.shape:
        out += put(3, b"".join(map(varint, tensor.shape)))
    number = tensor.kind + 3
    if tensor.kind == STRING:
        return out + b"".join(put(number, value) for value in tensor.values)
    if tensor.kind in _FLOATS:
        packed = struct.pack(f"<{len(tensor.values)}{_FLOATS[tensor.kind]}", *tensor.values)
    else:
        packed = b"".join(map(varint, tensor.values))
    return out + (put(number, packed) if packed else b"")


def read_message(data: bytes) -> Message:
    """Read a GrpsMessage."""
    found = fields(data)
    status = None
    if 1 in found:
        status_fields = fields(found[1][-1])
        text = status_fields.get(2, [b""])[-1].decode()
        status = (status_fields.get(1, [0])[-1], text, status_fields.get(3, [0])[-1])
    tensors = None
    if 5 in found:
        tensors = tuple(_read_tensor(each) for each in fields(found[5][-1]).get(1, []))
    return Message(
        model=found.get(2, [b""])[-1].decode(),
        status=status,
        data=found[3][-1] if 3 in found else None,
        text=found[4][-1].decode() if 4 in found else None,
        tensors=tensors,
    )


def _read_tensor(data: bytes) -> Tensor:
    found = fields(data)
    kind = found[2][-1]
    written = found.get(kind + 3, [])
    assert set(found) <= {1, 2, 3, kind + 3}, f"data of another type: {sorted(found)}"
    values: Sequence[Any]
    if kind == STRING:
        values = written
    elif kind in _FLOATS:
        packed = b"".join(written)
        letter = _FLOATS[kind]
        values = struct.unpack(f"<{len(packed) // struct.calcsize(letter)}{letter}", packed)
    else:
        values = [signed(value) for value in _varints(b"".join(written))]
    shape = tuple(_varints(b"".join(found.get(3, []))))
    return Tensor(found.get(1, [b""])[-1].decode(), kind, shape, tuple(values))


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


# -- compression


def pack(kind: int, data: bytes) -> bytes:
    """Compress a message; Snappy as one literal, which is a right block."""
    if kind == GZIP:
        return gzip.compress(data, mtime=0)
    if kind == ZLIB:
        return zlib.compress(data)
    if kind == SNAPPY:
        literals = b"".join(
            bytes([61 << 2]) + struct.pack("<H", len(part) - 1) + part
            for part in (data[at : at + 65536] for at in range(0, len(data), 65536))
        )
        return varint(len(data)) + literals
    return data


def unpack(kind: int, data: bytes) -> bytes:
    """Decompress a message; of Snappy every element."""
    if kind == GZIP:
        return gzip.decompress(data)
    if kind == ZLIB:
        return zlib.decompress(data)
    return _unsnap(data) if kind == SNAPPY else data


def _unsnap(data: bytes) -> bytes:
    size, at = _varint(data, 0)
    out = bytearray()
    while at < len(data):
        first = data[at]
        kind, length = first & 3, first >> 2
        at += 1
        if kind == 0:
            if length >= 60:
                more = length - 59
                length = int.from_bytes(data[at : at + more], "little")
                at += more
            out += data[at : at + length + 1]
            at += length + 1
            continue
        if kind == 1:
            length, far = (length & 7) + 4, (first >> 5) << 8 | data[at]
            at += 1
        else:
            wide = 2 if kind == 2 else 4
            length, far = length + 1, int.from_bytes(data[at : at + wide], "little")
            at += wide
        for _ in range(length):
            out.append(out[-far])
    assert len(out) == size
    return bytes(out)


# -- frames


def frame(meta: bytes, body: bytes = b"", attachment: bytes = b"") -> bytes:
    """Write a frame."""
    size = len(meta) + len(body) + len(attachment)
    return _HEADER.pack(b"PRPC", size, len(meta)) + meta + body + attachment


@dataclass(frozen=True)
class Question:
    """A request.

    Attributes:
        body: The message, not compressed.
        extra: More fields of RpcRequestMeta.
        credential: The `authentication_data` of RpcMeta; "" leaves it out.
    """

    method: str
    body: bytes = b""
    service: str = FULL_NAME
    compress: int = NONE
    attachment: bytes = b""
    extra: Mapping[int, int | bytes | str] = field(default_factory=dict)
    credential: str = ""

    def bytes(self, number: int | None) -> bytes:
        """Return its frame, with this number; None leaves it out."""
        request = put(1, self.service) + put(2, self.method)
        request += b"".join(put(key, value) for key, value in self.extra.items())
        meta = put(1, request) + put(3, self.compress)
        if number is not None:
            meta += put(4, number)
        if self.attachment:
            meta += put(5, len(self.attachment))
        if self.credential:
            meta += put(7, self.credential)
        return frame(meta, pack(self.compress, self.body), self.attachment)


@dataclass(frozen=True)
class Answer:
    """An answer's metadata, and its message."""

    number: int
    code: int
    text: str
    message: Message
    size: int = 0

    @property
    def status(self) -> tuple[int, str, int]:
        """The Status of the message, which every answer with an error code of 0 has."""
        assert self.code == 0, (self.code, self.text)
        assert self.message.status is not None
        return self.message.status


class Client:
    """A connection to a server; a context manager.

    Args:
        address: "host:port".
        patience_s: How long it waits for anything.
    """

    def __init__(self, address: str, patience_s: float = 30.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), patience_s)
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, question: Question, number: int | None = None) -> int:
        """Send a question and return its number, the next one unless *number* is given."""
        if number is None:
            self._next += 1
            number = self._next
        self.socket.sendall(question.bytes(number))
        return number

    def answer(self) -> Answer | None:
        """Return the answer that comes next; None where the server has closed."""
        header = self._exactly(_HEADER.size)
        if header is None:
            return None
        magic, body_size, meta_size = _HEADER.unpack(header)
        assert magic == b"PRPC", header
        body = self._exactly(body_size) or b""
        assert len(body) == body_size, "the connection ended inside a frame"
        meta = fields(body[:meta_size])
        assert set(meta) <= {2, 3, 4}, f"no answer has the fields {sorted(meta)}"
        response_fields = fields(meta[2][-1])
        data = unpack(meta.get(3, [NONE])[-1], body[meta_size:])
        return Answer(
            signed(meta.get(4, [0])[-1]),
            response_fields.get(1, [0])[-1],
            response_fields.get(2, [b""])[-1].decode(),
            read_message(data),
            len(data),
        )

    def ask(self, question: Question, number: int | None = None) -> Answer:
        """Send a question and return its answer, which must be the next to come."""
        sent = self.send(question, number)
        answer = self.answer()
        assert answer is not None, "the connection ended without an answer"
        assert answer.number == sent
        return answer

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionError:
                return None
            if not piece:
                assert not data, "the connection ended inside a frame"
                return None
            data += piece
        return bytes(data)
