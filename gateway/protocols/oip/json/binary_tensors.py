"""The binary tensor extension: JSON first, then the bytes of its binary tensors, in order.

Source: Triton extension "binary_tensor_data"; docs/protocols/open-inference.md,
"4. Binary tensors over HTTP".
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gateway.accelerator import accelerated
from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.ir.errors import InvalidTensor, MalformedMessage
from gateway.ir.tensors.data import StreamedData
from gateway.wire.http import Buffer, Headers, size_of

BINARY_SIZE = "binary_data_size"
BINARY_DATA = "binary_data"
LENGTH_HEADER = "Inference-Header-Content-Length"
JSON_HEADERS = Headers((("Content-Type", "application/json"),))

LENGTH_KEY = LENGTH_HEADER.lower()
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)
_SHOWN = 32
_CACHE_ENTRIES = 1024


class NeededWhole(Exception):  # not an error: the request is read again when it is complete
    """A request whose body is incomplete has an input whose elements must be checked."""


def is_length(text: str) -> bool:
    """Return whether *text* is a length."""
    return _DIGITS.fullmatch(text) is not None


def too_short(length: int, body_bytes: int) -> MalformedMessage:
    """Return the error for a body that is shorter than its JSON."""
    return MalformedMessage(
        f"{LENGTH_HEADER} is {length}: the complete body has {body_bytes} bytes"
    )


@accelerated
def json_length(headers: Headers) -> int | None:
    """Return the length of the JSON, without a check against the body; None for no header.

    Raises:
        MalformedMessage: The header occurs twice, or is not a number.
    """
    places, pairs = headers.positions, headers.pairs
    if places is not None and len(places) == len(pairs):  # a template, in which no field repeats
        place = places.get(LENGTH_KEY)
        return None if place is None else _length_of(pairs[place][1])
    text = headers.get(LENGTH_KEY)
    if text is None:
        return None
    if headers.repeats(LENGTH_KEY):
        raise MalformedMessage(f"{LENGTH_HEADER} is sent more than once")
    return _length_of(text)


@lru_cache(_CACHE_ENTRIES)  # messages repeat a few lengths; an error is not cached
def _length_of(text: str) -> int:
    if not is_length(text):
        raise MalformedMessage(
            f"{LENGTH_HEADER} is {text[:_SHOWN]!r}: expected the length of the JSON in bytes"
        )
    return int(text)


@lru_cache(_CACHE_ENTRIES)  # messages repeat a few lengths
def binary_headers(json_bytes: int) -> Headers:
    """Return the headers of a message with a binary part."""
    return Headers((("Content-Type", "application/octet-stream"), (LENGTH_HEADER, str(json_bytes))))


class BinaryPart:
    """The bytes after the JSON, returned in order without copies.

    Args:
        kind: "input" or "output", for errors.
        view: Those bytes.
        has_header: The message has the length header.
        rest: The stream of these bytes, where they have not arrived; *view* is empty then.

    Attributes:
        is_arriving: They have not arrived.
    """

    def __init__(
        self, kind: str, view: memoryview, *, has_header: bool, rest: StreamingBody | None = None
    ) -> None:
        self._kind = kind
        self._view = view
        self._at = 0
        self._has_header = has_header
        self._rest = rest
        self._size = view.nbytes if rest is None else rest.end - rest.start
        self.is_arriving = rest is not None

    def await_(self, name: str, size: Any) -> StreamedData:
        """Return the next *size* bytes, which have not arrived; otherwise as `read`."""
        self._pass(name, size)
        assert self._rest is not None  # noqa: S101  # they have not arrived
        return StreamedData(self._rest, self._rest.start + self._at - size, size)

    def read(self, name: str, size: Any) -> memoryview:
        """Return the next *size* bytes, those of the tensor *name*.

        Raises:
            MalformedMessage: *size* is not a size.
            InvalidTensor: Fewer bytes are left.
        """
        self._pass(name, size)
        return self._view[self._at - size : self._at]

    def peek(self, size: int) -> memoryview:
        """Return what `read` would return, as far as it has arrived, and leave it there."""
        return self._view[self._at : self._at + max(size, 0)]

    def _pass(self, name: str, size: Any) -> None:
        if type(size) is not int or size < 0:
            raise MalformedMessage(
                f"{self._kind} {name!r} has {BINARY_SIZE} {repr(size)[:_SHOWN]}: "
                "expected a number of bytes"
            )
        self._at += size
        if self._at > self._size:
            missing = self._at - self._size
            hint = (
                ""
                if self._has_header
                else f"; the header {LENGTH_HEADER}, which has the length of the JSON, is missing"
            )
            raise InvalidTensor(
                f"{self._kind} {name!r} has {BINARY_SIZE} {size}: "
                f"{missing} bytes of it are missing after the JSON{hint}"
            )

    def finish(self) -> None:
        """Check that no bytes are left.

        Raises:
            MalformedMessage: Some are left.
        """
        remaining = self._size - self._at
        if remaining:
            raise MalformedMessage(
                f"{remaining} bytes are left after the binary {self._kind}s: each needs its "
                f"{BINARY_SIZE}, and {LENGTH_HEADER} the exact length of the JSON"
            )


def body_of(
    text: Sequence[bytes], binary: Sequence[memoryview], always: bool
) -> tuple[Headers, Sequence[Buffer]]:
    """Return headers and body of a message; its buffers are not joined.

    Args:
        text: The JSON part.
        binary: The binary tensors, in order.
        always: Send the length header although *binary* is empty; Triton's responses then
            omit it, as plain JSON.
    """
    filled = binary if all(map(len, binary)) else [view for view in binary if len(view)]
    if filled or (binary and always):
        size = len(text[0]) if len(text) == 1 else size_of(text)
        return binary_headers(size), (*text, *filled)
    return JSON_HEADERS, tuple(text)
