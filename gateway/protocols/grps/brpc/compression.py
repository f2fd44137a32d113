"""Bounded compression of the message in a baidu_std frame: none, snappy, gzip, zlib.

Decompression stops at the limit on messages, however strongly the data is compressed: tensors of
one value are.  Snappy is the raw block.  The size of a message is known before memory is allocated:
Snappy and gzip declare it, and must not exceed it; zlib data is counted.

Source: docs/protocols/grps.md, "12. brpc frames".
"""

import gzip
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from gateway.ir.work import charge
from gateway.protocols.grps.errors import Unreadable

NONE, SNAPPY, GZIP, ZLIB = 0, 1, 2, 3

NAMES: Final = {NONE: "none", SNAPPY: "snappy", GZIP: "gzip", ZLIB: "zlib"}
NUMBERS: Final = {name: number for number, name in NAMES.items()}

# A copy of two bytes yields eleven, one of three yields 64: no block of snappy grows more.
_SNAPPY_RATIO: Final = 22
_SNAPPY_SLACK_BYTES: Final = 64
_LEVEL: Final = 1
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_GZIP_SIZE_BYTES: Final = 4
_COUNTED_BYTES: Final = 64 * 1024
# A larger size is not counted in advance, which takes 10 ms: the limit is used instead.
_MOST_COUNTED_BYTES: Final = 4 << 20
# A message has so many elements, and one more for each byte that came: see `decompressed_elements`
# of listeners.
_ELEMENTS: Final = 4096
_BYTE: Final = 1 / 100


def decompress(number: int, data: memoryview, most: int) -> memoryview:
    """Return the message in *data*, compressed by the method of this number.

    Args:
        number: One of `NAMES`.
        data: The compressed bytes.
        most: The limit on its size.

    Raises:
        Unreadable: The method is unknown, the data is damaged, or the message exceeds the limit.
    """
    unpack = _UNPACK.get(number)
    if unpack is None:
        raise Unreadable(f"compress_type {number} is unknown")
    if number != NONE:
        charge(unpacked_bytes(number, data, most) * _BYTE)
    return unpack(data, most)


def unpacked_bytes(number: int, data: memoryview, most: int) -> int:
    """Return the most bytes that `decompress` will return; 0 for uncompressed or damaged data."""
    count = _SIZES.get(number)
    if count is None:
        return 0
    size = count(data, most)
    return size if size <= most else 0


def most_elements(data: memoryview) -> int:
    """Return how many elements the message may have that is compressed as *data*."""
    return _ELEMENTS + len(data)


def compress(number: int, data: bytes) -> bytes:
    """Return *data* compressed by the method of this number."""
    if number == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if number == GZIP:
        return gzip.compress(data, _LEVEL, mtime=0)
    return zlib.compress(data, _LEVEL) if number == ZLIB else data


def _plain(data: memoryview, _most: int) -> memoryview:
    return data


def _ungzipped(data: memoryview, most: int) -> memoryview:
    size = _gzip_size(data, most)
    if size > most:
        raise _too_large(most)
    return _inflated(data, size, _GZIP_BITS)


def _inflated(data: memoryview, most: int, bits: int = zlib.MAX_WBITS) -> memoryview:
    stream = zlib.decompressobj(bits)
    try:
        found = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise Unreadable(f"compressed data is damaged: {error}") from error
    if len(found) > most:
        del found  # the error's traceback would keep it
        raise _too_large(most)
    if not stream.eof:
        raise Unreadable(f"compressed data ends early, after {len(data)} bytes")
    if stream.unused_data:
        raise Unreadable(f"{len(stream.unused_data)} bytes after the compressed data")
    return memoryview(found)


def _decompress_snappy(data: memoryview, most: int) -> memoryview:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > most:
            raise _too_large(most)
        if size > _SNAPPY_RATIO * len(data) + _SNAPPY_SLACK_BYTES:
            raise Unreadable(
                f"snappy data of {len(data)} bytes declares {size}, which it cannot contain"
            )
        return memoryview(bytes(cramjam.snappy.decompress_raw(data)))
    except (cramjam.DecompressionError, ValueError, OverflowError, MemoryError) as error:
        raise Unreadable(f"snappy data is damaged: {error}") from error


def _declared_snappy_size(data: memoryview, _most: int) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(data))
    except (cramjam.DecompressionError, ValueError, OverflowError):
        return 0


def _gzip_size(data: memoryview, _most: int) -> int:
    return int.from_bytes(data[-_GZIP_SIZE_BYTES:], "little")


def _counted(data: memoryview, most: int) -> int:
    stream = zlib.decompressobj()
    size, remaining = 0, bytes(data)
    try:
        while remaining and size <= most:
            if size > _MOST_COUNTED_BYTES:
                return most
            size += len(stream.decompress(remaining, _COUNTED_BYTES))
            remaining = stream.unconsumed_tail
    except zlib.error:
        return 0
    return size


def _too_large(most: int) -> Unreadable:
    return Unreadable(f"compressed data exceeds {most} bytes, the limit of a message")


_SIZES: Final[dict[int, Callable[[memoryview, int], int]]] = {
    SNAPPY: _declared_snappy_size,
    GZIP: _gzip_size,
    ZLIB: _counted,
}
_UNPACK: Final[dict[int, Callable[[memoryview, int], memoryview]]] = {
    NONE: _plain,
    SNAPPY: _decompress_snappy,
    GZIP: _ungzipped,
    ZLIB: _inflated,
}
