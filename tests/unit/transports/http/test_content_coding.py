"""Content codings: negotiation, inflating within limits, compressing."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.errors import GatewayError, MalformedMessage, Overloaded, TooLarge, Unsupported
from gateway.transports.http.content_coding import (
    Inflater,
    coding_for,
    coding_of,
    compress,
    inflate,
)
from gateway.wire.http import Buffer

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
MIB = 1 << 20


async def _free(_size: int) -> None: ...


async def inflated(coding: str, data: bytes, *, limit: int = 64 * MIB, ratio: int = 200) -> bytes:
    return bytes(await inflate(Inflater(coding, data, limit, ratio, MIB), _free))


@pytest.mark.parametrize(
    ("values", "coding"),
    [
        ([], None),
        ([""], None),
        (["identity"], None),
        (["gzip"], "gzip"),
        (["X-GZIP"], "gzip"),
        ([" Deflate "], "deflate"),
        (["identity, gzip"], "gzip"),
    ],
)
def test_coding_of_content(values: list[str], coding: str | None) -> None:
    """One known coding, or none, is read from the header."""
    assert coding == coding_of(values)


@pytest.mark.parametrize("values", [["br"], ["gzip, deflate"], ["gzip", "gzip"], ["zstd"]])
def test_other_codings_are_unsupported(values: list[str]) -> None:
    """Unknown codings, and more than one, are rejected."""
    with pytest.raises(Unsupported):
        coding_of(values)


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ([], None),
        ([""], None),
        (["*"], None),
        (["br, zstd"], None),
        (["identity"], None),
        (["gzip"], "gzip"),
        (["gzip, deflate"], "gzip"),
        (["deflate, gzip"], "deflate"),
        (["deflate;q=0.5, gzip;q=0.8"], "gzip"),
        (["gzip;q=0, deflate;q=0.1"], "deflate"),
        (["gzip;q=0"], None),
        (["gzip;q=0.000"], None),
        (["gzip;q=bogus"], None),
        (["gzip;q=1.001"], None),
        (["br;q=1, gzip;q=0.2, *;q=0.9"], "gzip"),
        (["GZIP; Q=0.5"], "gzip"),
        (["br", "deflate"], "deflate"),
    ],
)
def test_coding_for_a_client(accept: list[str], coding: str | None) -> None:
    """The highest quality wins, the first among equals, and zero excludes."""
    assert coding == coding_for(accept)


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 3 * MIB + 7])
async def test_inflates_compressed_content(coding: str, size: int) -> None:
    """Content of any size is restored, on the event loop and off it."""
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    packed = zlib.compress(data, 0) if coding == "deflate" else gzip.compress(data, 0)
    assert data == await inflated(coding, packed)


@pytest.mark.parametrize("coding", PACK)
async def test_compressed_content_inflates_again(coding: str) -> None:
    """Several buffers become one compressed body, small and large."""
    cases: list[list[Buffer]] = [[b"a", memoryview(b"bc")], [bytes(100_000), b"tail"]]
    for buffers in cases:
        packed = await compress(coding, buffers)
        assert b"".join(buffers) == await inflated(coding, packed)


@pytest.mark.parametrize("coding", PACK)
async def test_truncated_content_is_malformed(coding: str) -> None:
    """A body that lacks even one byte of its end is rejected."""
    packed = PACK[coding](b"some text to pack")
    for end in range(len(packed)):
        with pytest.raises(MalformedMessage):
            await inflated(coding, packed[:end])


@pytest.mark.parametrize("coding", PACK)
async def test_bytes_after_the_end_are_malformed(coding: str) -> None:
    """A body with bytes after its end, such as a second gzip member, is rejected."""
    for tail in (b"\0", PACK[coding](b"x")):
        with pytest.raises(MalformedMessage):
            await inflated(coding, PACK[coding](b"x") + tail)


async def test_raw_deflate_is_malformed() -> None:
    """The name deflate means the zlib format; deflate data without its wrapper is rejected."""
    raw = zlib.compressobj(wbits=-15)
    with pytest.raises(MalformedMessage):
        await inflated("deflate", raw.compress(b"data") + raw.flush())


@pytest.mark.parametrize("coding", PACK)
async def test_inflated_size_limit(coding: str) -> None:
    """The result may have exactly as many bytes as the limit."""
    assert len(await inflated(coding, PACK[coding](bytes(1000)), limit=1000)) == 1000
    with pytest.raises(TooLarge) as caught:
        await inflated(coding, PACK[coding](bytes(1001)), limit=1000)
    assert caught.value.limit == "message_bytes"


async def test_decompression_ratio_limit() -> None:
    """Any ratio passes below the floor; the limit holds above it."""
    assert len(await inflated("gzip", gzip.compress(bytes(MIB)))) == MIB
    with pytest.raises(TooLarge) as caught:
        await inflated("gzip", gzip.compress(bytes(4 * MIB)))
    assert caught.value.limit == "decompressed_ratio"
    assert len(await inflated("gzip", gzip.compress(bytes(4 * MIB)), ratio=2000)) == 4 * MIB


async def test_a_decompression_bomb_costs_little_memory() -> None:
    """A bomb of 256 MiB is rejected long before it is inflated."""
    bomb = gzip.compress(bytes(256 * MIB), 1)
    tracemalloc.start()
    with pytest.raises(TooLarge):
        await inflated("gzip", bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80 * MIB


async def test_memory_for_inflating_can_be_refused() -> None:
    """Every inflated byte is reserved; an error of the reservation ends the work."""
    counted: list[int] = []

    async def count(size: int) -> None:
        counted.append(size)
        if sum(counted) > 2 * MIB:
            raise Overloaded("enough")

    packed = gzip.compress(bytes(range(256)) * 4096 * 8, 0)
    inflater = Inflater("gzip", packed, 64 * MIB, 200, MIB)
    with pytest.raises(Overloaded):
        await inflate(inflater, count)
    assert 2 * MIB < sum(counted) < 4 * MIB


@given(st.binary(max_size=200), st.sampled_from(sorted(PACK)))
def test_any_bytes_inflate_or_are_rejected(data: bytes, coding: str) -> None:
    """Any bytes inflate or raise a GatewayError."""
    inflater = Inflater(coding, data, 1000, 200, 100)
    try:
        assert inflater.run(MIB)
    except GatewayError:
        return
    assert zlib.decompress(data, 47) == bytes(inflater.result)
