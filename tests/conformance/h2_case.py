"""One conformance case of HTTP/2, and what cases are written with."""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.h2_kit import (
    MESSAGE,
    PATH,
)
from tests.hostile.frames import (
    BEGIN,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST,
    SETTINGS,
    WINDOW,
    block,
    frame,
)

ANSWERED, IGNORED = "answered", "ignored"
BLOCK = block(PATH)


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        section: Of RFC 9113, or of RFC 7541 where it begins with "H".
        name: In a few words; unique.
        data: Frames after what the connection begins with.
        expected: What becomes of them.
        begin: What the connection begins with.
    """

    section: str
    name: str
    data: bytes
    expected: str
    begin: bytes = BEGIN


def setting(key: int, value: int) -> bytes:
    """Write a SETTINGS frame of one setting."""
    return frame(SETTINGS, payload=key.to_bytes(2, "big") + value.to_bytes(4, "big"))


def window(size: int, on: int = 0) -> bytes:
    """Write a WINDOW_UPDATE."""
    return frame(WINDOW, 0, on, size.to_bytes(4, "big"))


def reset(on: int, code: int = 8) -> bytes:
    """Write a RST_STREAM."""
    return frame(RST, 0, on, code.to_bytes(4, "big"))


def call(
    *extra: bytes,
    at: int = 1,
    end: bool = False,
    te: bytes = b"trailers",
    path: bytes = PATH,
) -> bytes:
    """Write the HEADERS frame of a call with other fields."""
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, at, block(path, *extra, te=te))


def whole(*extra: bytes, te: bytes = b"trailers", path: bytes = PATH) -> bytes:
    """Write a whole call with other fields."""
    return call(*extra, te=te, path=path) + MESSAGE
