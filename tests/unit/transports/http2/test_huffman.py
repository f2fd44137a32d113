"""Huffman codes: the same text, and the same errors, as with the library's own decoder."""

from collections.abc import Callable

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as library_decode
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.http2.hpack import decode_huffman

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
TEXTS = st.binary(max_size=60) | st.text("aeio/019.-_%zXZ&", max_size=60).map(str.encode)


@given(text=TEXTS)
def test_decodes_text_encoded_by_the_library(text: bytes) -> None:
    """Codes of all lengths, from 5 to 30 bits, are decoded."""
    assert text == decode_huffman(ENCODER.encode(text))


def test_decodes_each_symbol_at_each_bit() -> None:
    """A code may begin at any of the eight bits of a byte."""
    texts = [  # "a" has 5 bits, which begins the next code 5 bits later
        b"a" * before + bytes((symbol,)) + b"a" for symbol in range(256) for before in range(8)
    ]
    assert texts == [decode_huffman(ENCODER.encode(text)) for text in texts]


@given(
    text=TEXTS,
    flips=st.lists(st.integers(0, 1000), max_size=3),
    end=st.sampled_from([b"", b"\xff", b"\xff\xff", b"\xff\xff\xff\xff", b"\x00"]),
)
def test_damaged_codes_decode_as_by_the_library(text: bytes, flips: list[int], end: bytes) -> None:
    """Flipped bits, the EOS code and wrong padding have the same result or are errors in both."""
    raw = bytearray(ENCODER.encode(text))
    for flip in flips if raw else ():
        raw[flip // 8 % len(raw)] ^= 1 << flip % 8
    raw += end
    try:
        expected = library_decode(bytes(raw))
    except HPACKDecodingError:
        with pytest.raises(ValueError, match="code"):
            decode_huffman(bytes(raw))
    else:
        assert expected == decode_huffman(bytes(raw))


@pytest.mark.parametrize("size", [1, 2])
def test_all_short_codes_decode_as_by_the_library(size: int) -> None:
    """Every string of one and of two bytes has the same text, or is an error in both."""
    for number in range(256**size):
        raw = number.to_bytes(size, "big")
        assert _text_or_none(library_decode, raw) == _text_or_none(decode_huffman, raw)


def _text_or_none(decode: Callable[[bytes], bytes], raw: bytes) -> bytes | None:
    try:
        return decode(raw)
    except (HPACKDecodingError, ValueError):
        return None
