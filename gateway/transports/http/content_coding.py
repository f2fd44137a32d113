"""Content codings: bounded decompression, compression of responses, and Accept-Encoding.

Supported are gzip (RFC 1952) and deflate (RFC 1950, the zlib format), one coding for each message.
Libraries decompress without a limit or accept truncated streams, hence the code here.  Large work
runs on a thread: zlib releases the interpreter lock.
"""

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Sequence

from gateway.ir.errors import MalformedMessage, TooLarge, Unsupported
from gateway.wire.http import Buffer, size_of

ACCEPTED = "gzip, deflate"
"""The codings that a response to an unknown coding offers."""

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_STEP_BYTES = 64 * 1024
_ON_LOOP_BYTES = 64 * 1024
_HOP_BYTES = 1 << 20
_LEVEL = 4
_QUALITY = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.ASCII)


def coding_of(values: Sequence[str]) -> str | None:
    """Return the coding that the Content-Encoding fields *values* name; None for none.

    Raises:
        Unsupported: It is unknown, or there are several.
    """
    names = [name.strip().lower() for value in values for name in value.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if not names:
        return None
    if len(names) > 1:
        raise Unsupported(f"content has {len(names)} codings, at most 1 is supported")
    name = {"x-gzip": "gzip"}.get(names[0], names[0])
    if name not in _WINDOW:
        raise Unsupported(f"content coding {names[0][:40]!r} is unknown, supported: {ACCEPTED}")
    return name


def coding_for(values: Sequence[str]) -> str | None:
    """Return the coding for a response, from the values of Accept-Encoding; None for none.

    The highest quality wins, and the first among equals; "*" and unsupported codings are ignored.
    """
    best, best_quality = None, 0.0
    for item in ",".join(values).split(","):
        name, _, parameters = item.partition(";")
        name = name.strip().lower()
        quality = _quality(parameters.strip().lower())
        if name in _WINDOW and quality > best_quality:
            best, best_quality = name, quality
    return best


def _quality(parameters: str) -> float:
    if not parameters:
        return 1.0
    match = _QUALITY.fullmatch(parameters)
    return 0.0 if match is None else float(match[1])


class Inflater:
    """Decompresses one content coding within limits.

    Args:
        coding: "gzip" or "deflate".
        data: The complete compressed content.
        limit_bytes: The size limit of the result.
        ratio: The limit of result to content, if the result exceeds *ratio_floor_bytes*.
        ratio_floor_bytes: The size below which any ratio is allowed.
    """

    def __init__(
        self, coding: str, data: Buffer, limit_bytes: int, ratio: int, ratio_floor_bytes: int
    ) -> None:
        self._coding = coding
        self._size = len(data)
        self._rest: Buffer = data
        self._limit = limit_bytes
        self._ratio = ratio
        self._floor = ratio_floor_bytes
        self._zlib = zlib.decompressobj(_WINDOW[coding])
        self.result = bytearray()

    def run(self, up_to_bytes: int) -> bool:
        """Decompress about *up_to_bytes* more, and return whether the end is reached.

        Raises:
            MalformedMessage: The content is malformed, truncated, or followed by other data.
            TooLarge: The result, or its ratio to the content, exceeds its limit.
        """
        goal = len(self.result) + up_to_bytes
        while not self._zlib.eof:
            try:
                piece = self._zlib.decompress(self._rest, _STEP_BYTES)
            except zlib.error as error:
                raise MalformedMessage(f"content is not {self._coding}: {error}") from error
            self._rest = self._zlib.unconsumed_tail
            self.result += piece
            self._check()
            if not piece and not self._rest and not self._zlib.eof:
                raise MalformedMessage(
                    f"{self._coding} content ends early, after {self._size} bytes"
                )
            if len(self.result) >= goal and not self._zlib.eof:
                return False
        if self._zlib.unused_data:
            raise MalformedMessage(
                f"{self._coding} content goes on for {len(self._zlib.unused_data)} bytes "
                "after its end"
            )
        return True

    def _check(self) -> None:
        size = len(self.result)
        if size > self._limit:
            raise TooLarge(
                f"content inflates to more than {self._limit} bytes", limit="message_bytes"
            )
        if size > self._floor and size > self._ratio * self._size:
            raise TooLarge(
                f"content of {self._size} bytes inflates to more than {self._ratio} times that",
                limit="decompressed_ratio",
            )


async def inflate(inflater: Inflater, grow: Callable[[int], Awaitable[None]]) -> memoryview:
    """Run *inflater* to its end, in a thread beyond its first 64 KiB.

    Args:
        inflater: Fresh.
        grow: Called with the size of each piece of the result, to count it.

    Raises:
        GatewayError: What the inflater or *grow* raises.
    """
    loop = asyncio.get_running_loop()
    done = inflater.run(_ON_LOOP_BYTES)
    counted = len(inflater.result)
    await grow(counted)
    while not done:
        done = await loop.run_in_executor(None, inflater.run, _HOP_BYTES)
        await grow(len(inflater.result) - counted)
        counted = len(inflater.result)
    return memoryview(inflater.result).toreadonly()


async def compress(coding: str, buffers: Sequence[Buffer]) -> bytes:
    """Return *buffers* in *coding*; large ones are compressed in a thread."""
    if size_of(buffers) <= _ON_LOOP_BYTES:
        return _compress(coding, buffers)
    return await asyncio.get_running_loop().run_in_executor(None, _compress, coding, buffers)


def _compress(coding: str, buffers: Sequence[Buffer]) -> bytes:
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[coding])
    pieces = [deflater.compress(buffer) for buffer in buffers]
    pieces.append(deflater.flush())
    return b"".join(pieces)
