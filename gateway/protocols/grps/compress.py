"""Compression of the message in a baidu_std frame: none, snappy, gzip, zlib; bounded.

Nothing is unpacked beyond the limit on messages, nor beyond 200 times what came (over 1 MiB): the
limit that HTTP bodies have too.  Snappy is the raw block, whose length is checked before any memory
is taken for it.

Source: dossier, section 14.2.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from gateway.protocols.grps.errors import Unreadable

NONE, SNAPPY, GZIP, ZLIB = 0, 1, 2, 3

NAMES: Final = {NONE: "none", SNAPPY: "snappy", GZIP: "gzip", ZLIB: "zlib"}
NUMBERS: Final = {name: number for number, name in NAMES.items()}

_RATIO: Final = 200
_RATIO_FLOOR_BYTES: Final = 1 << 20
# A copy of two bytes gives eleven, one of three gives 64: no block of snappy grows more.
_SNAPPY_RATIO: Final = 22
_SNAPPY_SLACK_BYTES: Final = 64
_LEVEL: Final = 1
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


def decompress(number: int, data: memoryview, most: int) -> memoryview:
    """Return the message that *data* is, compressed by the method of this number.

    Args:
        number: One of `NAMES`.
        data: As it came.
        most: Bytes it may have.

    Raises:
        Unreadable: There is no such method, the data is damaged, or it would become too large.
    """
    unpack = _UNPACK.get(number)
    if unpack is None:
        raise Unreadable(f"compress_type {number} is unknown")
    most = min(most, max(_RATIO_FLOOR_BYTES, _RATIO * len(data)))
    return unpack(data, most)


def compress(number: int, data: bytes) -> bytes:
    """Return *data* compressed by the method of this number."""
    if number == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if number == GZIP:
        return gzip.compress(data, _LEVEL, mtime=0)
    return zlib.compress(data, _LEVEL) if number == ZLIB else data


def _plain(data: memoryview, _most: int) -> memoryview:
    return data


def _inflated(bits: int) -> Callable[[memoryview, int], memoryview]:
    def unpack(data: memoryview, most: int) -> memoryview:
        stream = zlib.decompressobj(bits)
        try:
            found = stream.decompress(data, most + 1)
        except zlib.error as error:
            raise Unreadable(f"compressed data is damaged: {error}") from error
        if len(found) > most:
            raise _too_large(most)
        if not stream.eof:
            raise Unreadable(f"compressed data ends early, after {len(data)} bytes")
        if stream.unused_data:
            raise Unreadable(f"{len(stream.unused_data)} bytes after the compressed data")
        return memoryview(found)

    return unpack


def _unsnapped(data: memoryview, most: int) -> memoryview:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > most:
            raise _too_large(most)
        if size > _SNAPPY_RATIO * len(data) + _SNAPPY_SLACK_BYTES:
            raise Unreadable(
                f"snappy data of {len(data)} bytes announces {size}, which it cannot hold"
            )
        return memoryview(bytes(cramjam.snappy.decompress_raw(data)))
    except (cramjam.DecompressionError, ValueError, OverflowError, MemoryError) as error:
        raise Unreadable(f"snappy data is damaged: {error}") from error


def _too_large(most: int) -> Unreadable:
    return Unreadable(f"compressed data holds more than the {most} bytes that are allowed")


_UNPACK: Final[dict[int, Callable[[memoryview, int], memoryview]]] = {
    NONE: _plain,
    SNAPPY: _unsnapped,
    GZIP: _inflated(_GZIP_BITS),
    ZLIB: _inflated(zlib.MAX_WBITS),
}
