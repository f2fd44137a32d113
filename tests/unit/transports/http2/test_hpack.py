"""Header blocks: decoded as by the library, and within limits."""

from __future__ import annotations

import re

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.http2.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    Http2ConnectionError,
)
from gateway.transports.http2.hpack import NO_ENTRIES, Field, decode_block, indexed, literal

FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b":path", b":status", b"x-a", b"cookie", b"grpc-timeout"])
        | st.binary(min_size=1, max_size=200),
        st.sampled_from([b"", b"/", b"200", b"v" * 300]) | st.binary(max_size=200),
    ),
    max_size=12,
)
LIMIT = 65_536


class Decoder:
    """Decodes the header blocks of one peer in their order."""

    def __init__(self, limit_bytes: int = LIMIT) -> None:
        self.limit_bytes = limit_bytes
        self.table = NO_ENTRIES

    def decode(self, block: bytes) -> list[Field]:
        fields, self.table = decode_block(block, self.table, self.limit_bytes)
        return fields


@given(blocks=st.lists(FIELDS, max_size=6), huffman=st.booleans())
def test_decodes_blocks_of_the_hpack_library(
    blocks: list[list[tuple[bytes, bytes]]], huffman: bool
) -> None:
    """Table inserts, references and Huffman codes are decoded."""
    encoder, decoder = hpack.Encoder(), Decoder()
    for fields in blocks:
        assert fields == decoder.decode(encoder.encode(fields, huffman=huffman))


@given(blocks=st.lists(FIELDS, max_size=6), sizes=st.lists(st.integers(0, 4096), max_size=6))
def test_the_table_follows_its_size_updates(
    blocks: list[list[tuple[bytes, bytes]]], sizes: list[int]
) -> None:
    """The peer may shrink and grow the table; entries are evicted as in the library."""
    encoder, decoder = hpack.Encoder(), Decoder()
    for fields, size in zip(blocks, sizes, strict=False):
        encoder.header_table_size = size
        assert fields == decoder.decode(encoder.encode(fields))


@given(fields=FIELDS)
def test_the_hpack_library_decodes_literals(fields: list[tuple[bytes, bytes]]) -> None:
    """A block of literals decodes to the same fields, and inserts nothing."""
    block = b"".join(literal(*field) for field in fields)
    decoder = hpack.Decoder(max_header_list_size=LIMIT)
    assert fields == [(name, value) for name, value in decoder.decode(block, raw=True)]
    ours = Decoder()
    assert fields == ours.decode(block)
    assert NO_ENTRIES is ours.table


@given(block=st.binary(max_size=64))
def test_any_block_decodes_as_by_the_hpack_library(block: bytes) -> None:
    """Fields and errors agree for any bytes, except for more than two table size updates."""
    theirs: list[tuple[bytes, bytes]] | None
    try:
        theirs = [(name, value) for name, value in hpack.Decoder().decode(block, raw=True)]
    except (hpack.HPACKError, ValueError):
        theirs = None
    if theirs is None:
        with pytest.raises(Http2ConnectionError) as caught:
            Decoder().decode(block)
        assert COMPRESSION_ERROR == caught.value.code
    elif re.match(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}", block):
        # The library reads any number of table sizes; RFC 7541, 4.2 needs two.
        with pytest.raises(Http2ConnectionError, match="more than 2 updates"):
            Decoder().decode(block)
    else:
        assert theirs == Decoder().decode(block)


def test_fields_of_the_static_table_are_one_byte() -> None:
    """A field outside of the static table is a ValueError."""
    assert b"\x83" == indexed(b":method", b"POST")
    with pytest.raises(ValueError, match="not in tuple"):
        indexed(b":method", b"PUT")


def test_the_header_size_is_limited_while_decoding() -> None:
    """A bomb of references to one large entry fails at the limit, not after it."""
    decoder = Decoder(8192)
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000)
    with pytest.raises(Http2ConnectionError, match="more than 8192 bytes") as caught:
        decoder.decode(b"\xbe" * 1000)
    assert ENHANCE_YOUR_CALM == caught.value.code


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "names entry 0"),
        (b"\xbe", "names entry 62"),
        (b"\x40\x05ab", "in the middle"),
        (b"\x7f\xff\xff\xff\xff\xff\x01", "too large"),
        (b"\x3f\xe2\x1f", "4097 bytes"),
        (b"\x82\x20", "between header fields"),
        (b"\x00\x81\xff\x01a", "Huffman"),
    ],
)
def test_decoding_errors_name_the_cause(block: bytes, why: str) -> None:
    """Each invalid block has its own error text."""
    with pytest.raises(Http2ConnectionError, match=why):
        Decoder().decode(block)


def test_the_table_is_another_one_after_each_change() -> None:
    """Only inserts and resizes change the meaning of equal bytes."""
    decoder = Decoder()
    decoder.decode(b"\x82\x00\x01a\x01b")
    assert NO_ENTRIES is decoder.table
    decoder.decode(b"\x40\x01a\x01b")
    inserted = decoder.table
    assert ([(b"a", b"b")], 34, 4096) == inserted
    assert [(b"a", b"b")] == decoder.decode(b"\xbe")
    assert inserted is decoder.table
    decoder.decode(b"\x20")
    assert ([], 0, 0) == decoder.table
    assert NO_ENTRIES == ([], 0, 4096)
