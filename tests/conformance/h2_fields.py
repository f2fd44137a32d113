"""What a server makes of header fields, and of how HPACK writes them."""

from __future__ import annotations

from tests.conformance.h2_case import (
    ANSWERED,
    BLOCK,
    Case,
    call,
    whole,
)
from tests.conformance.h2_kit import (
    CALL,
    COMPRESSION_ERROR,
    MESSAGE,
    PATH,
    PROTOCOL_ERROR,
    connection,
    stream,
)
from tests.hostile.frames import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    body,
    frame,
    literal,
    message,
    number,
)

_LAST = END_HEADERS | END_STREAM


def raw(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Write a whole call of exactly *fields*, in their order."""
    written = b"".join(literal(name, value) for name, value in fields)
    return frame(HEADERS, END_HEADERS, 1, written) + MESSAGE


_METHOD, _SCHEME = (b":method", b"POST"), (b":scheme", b"http")
_PATH, _AUTHORITY = (b":path", PATH), (b":authority", b"h")
_TE, _TYPE = (b"te", b"trailers"), (b"content-type", b"application/grpc")
_PSEUDO = [_METHOD, _SCHEME, _PATH, _AUTHORITY]

FIELDS = [
    Case(
        "8.1",
        "trailers",
        CALL + body(message(b"x"), flags=0) + frame(HEADERS, _LAST, 1, literal(b"x", b"y")),
        ANSWERED,
    ),
    Case(
        "8.1",
        "second_headers_without_the_end",
        CALL + frame(HEADERS, END_HEADERS, 1, literal(b"x", b"y")),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.1",
        "pseudo_field_in_trailers",
        CALL + body(message(b"x"), flags=0) + frame(HEADERS, _LAST, 1, literal(b":path", b"/")),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.1",
        "upper_case_in_trailers",
        CALL + body(message(b"x"), flags=0) + frame(HEADERS, _LAST, 1, literal(b"X", b"y")),
        stream(PROTOCOL_ERROR),
    ),
    Case("8.1.1", "content_length_agrees", whole(literal(b"content-length", b"6")), ANSWERED),
    Case(
        "8.1.1",
        "content_length_too_small",
        whole(literal(b"content-length", b"5")),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.1.1",
        "content_length_too_large",
        whole(literal(b"content-length", b"7")),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.1.1",
        "content_length_of_no_body",
        call(literal(b"content-length", b"7"), end=True),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.1.1",
        "content_length_is_no_number",
        whole(literal(b"content-length", b"+6")),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.1.1",
        "two_content_lengths",
        whole(literal(b"content-length", b"6"), literal(b"content-length", b"7")),
        stream(PROTOCOL_ERROR),
    ),
    Case("8.2.1", "upper_case_name", whole(literal(b"X-Upper", b"a")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "name_with_a_blank", whole(literal(b"x a", b"a")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "name_with_a_colon", whole(literal(b"x:a", b"a")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "name_with_a_control", whole(literal(b"x\x01a", b"a")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "name_beyond_ascii", whole(literal(b"x-\xe9", b"a")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "empty_name", whole(literal(b"", b"a")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "value_with_nul", whole(literal(b"x", b"a\0b")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "value_with_cr", whole(literal(b"x", b"a\rb")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "value_with_lf", whole(literal(b"x", b"a\nb")), stream(PROTOCOL_ERROR)),
    Case("8.2.1", "path_with_lf", whole(path=PATH + b"\n"), stream(PROTOCOL_ERROR)),
    Case("8.2.2", "connection", whole(literal(b"connection", b"close")), stream(PROTOCOL_ERROR)),
    Case("8.2.2", "keep_alive", whole(literal(b"keep-alive", b"3")), stream(PROTOCOL_ERROR)),
    Case(
        "8.2.2",
        "proxy_connection",
        whole(literal(b"proxy-connection", b"x")),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.2.2",
        "transfer_encoding",
        whole(literal(b"transfer-encoding", b"chunked")),
        stream(PROTOCOL_ERROR),
    ),
    Case("8.2.2", "upgrade", whole(literal(b"upgrade", b"h2c")), stream(PROTOCOL_ERROR)),
    Case("8.2.2", "te_other_than_trailers", whole(te=b"trailers, deflate"), stream(PROTOCOL_ERROR)),
    Case(
        "8.3",
        "unknown_pseudo_field",
        raw([*_PSEUDO, (b":test", b"a"), _TE, _TYPE]),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.3",
        "pseudo_field_of_an_answer",
        raw([*_PSEUDO, (b":status", b"200"), _TE, _TYPE]),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.3",
        "pseudo_field_behind_others",
        raw([_METHOD, _SCHEME, _PATH, _TE, _AUTHORITY, _TYPE]),
        stream(PROTOCOL_ERROR),
    ),
    Case("8.3", "pseudo_field_twice", raw([*_PSEUDO, _METHOD, _TE, _TYPE]), stream(PROTOCOL_ERROR)),
    Case(
        "8.3.1", "no_method", raw([_SCHEME, _PATH, _AUTHORITY, _TE, _TYPE]), stream(PROTOCOL_ERROR)
    ),
    Case(
        "8.3.1", "no_scheme", raw([_METHOD, _PATH, _AUTHORITY, _TE, _TYPE]), stream(PROTOCOL_ERROR)
    ),
    Case(
        "8.3.1", "no_path", raw([_METHOD, _SCHEME, _AUTHORITY, _TE, _TYPE]), stream(PROTOCOL_ERROR)
    ),
    Case(
        "8.3.1",
        "empty_path",
        raw([_METHOD, _SCHEME, (b":path", b""), _AUTHORITY, _TE, _TYPE]),
        stream(PROTOCOL_ERROR),
    ),
    Case(
        "8.3.1",
        "any_order_of_pseudo_fields",
        raw([_AUTHORITY, _PATH, _SCHEME, _METHOD, _TE, _TYPE]),
        ANSWERED,
    ),
    Case(
        "8.3.1",
        "host_instead_of_authority",
        raw([_METHOD, _SCHEME, _PATH, (b"host", b"h"), _TE, _TYPE]),
        ANSWERED,
    ),
    Case("8.5", "connect", raw([(b":method", b"CONNECT"), _AUTHORITY]), stream(PROTOCOL_ERROR)),
    Case(
        "8.3.1",
        "another_method",
        raw([(b":method", b"GET"), _SCHEME, _PATH, _AUTHORITY, _TE, _TYPE]),
        ANSWERED,
    ),
]


def _hpack(tail: bytes) -> bytes:
    """Write a whole call whose block ends with *tail*."""
    return frame(HEADERS, END_HEADERS, 1, BLOCK + tail) + MESSAGE


HPACK = [
    Case("H2.3.3", "index_0", _hpack(b"\x80"), connection(COMPRESSION_ERROR)),
    Case(
        "H2.3.3",
        "index_behind_the_tables",
        _hpack(number(70, 7, 0x80)),
        connection(COMPRESSION_ERROR),
    ),
    Case(
        "H2.3.3",
        "name_behind_the_tables",
        _hpack(number(70, 4) + b"\1a"),
        connection(COMPRESSION_ERROR),
    ),
    Case(
        "H2.3.3",
        "index_of_the_dynamic_table",
        _hpack(literal(b"x", b"y", keep=True) + b"\xbe"),
        ANSWERED,
    ),
    Case(
        "H2.3.3",
        "index_that_was_evicted",
        _hpack(
            literal(b"x", b"y" * 3000, keep=True) + literal(b"z", b"y" * 3000, keep=True) + b"\xbf"
        ),
        connection(COMPRESSION_ERROR),
    ),
    Case(
        "H4.2",
        "table_size_at_its_limit",
        frame(HEADERS, 4, 1, number(4096, 5, 0x20) + BLOCK) + MESSAGE,
        ANSWERED,
    ),
    Case(
        "H4.2",
        "table_size_over_its_limit",
        frame(HEADERS, 4, 1, number(4097, 5, 0x20) + BLOCK) + MESSAGE,
        connection(COMPRESSION_ERROR),
    ),
    Case("H4.2", "table_size_behind_fields", _hpack(b"\x20"), connection(COMPRESSION_ERROR)),
    Case(
        "H4.2",
        "two_table_sizes",
        frame(HEADERS, 4, 1, b"\x20" + number(4096, 5, 0x20) + BLOCK) + MESSAGE,
        ANSWERED,
    ),
    Case(
        "H4.4",
        "entry_larger_than_the_table",
        _hpack(literal(b"x", b"y" * 4100, keep=True)),
        ANSWERED,
    ),
    Case("H5.1", "integer_too_large", _hpack(b"\xff" * 12), connection(COMPRESSION_ERROR)),
    Case("H5.1", "integer_without_an_end", _hpack(b"\xff\x80"), connection(COMPRESSION_ERROR)),
    Case("H5.1", "integer_with_needless_zeros", _hpack(b"\x0f\x80\x80\x00\x01a"), ANSWERED),
    Case(
        "H5.2",
        "text_longer_than_the_block",
        _hpack(b"\0\x7f\x10abc"),
        connection(COMPRESSION_ERROR),
    ),
    Case("H5.2", "huffman", _hpack(b"\0\x82\xf3\xe7\x82\xf5\xeb"), ANSWERED),
    Case(
        "H5.2",
        "huffman_padded_by_a_byte",
        _hpack(b"\0\x01x\x81\xff"),
        connection(COMPRESSION_ERROR),
    ),
    Case(
        "H5.2",
        "huffman_padded_with_zeros",
        _hpack(b"\0\x01x\x81\x18"),
        connection(COMPRESSION_ERROR),
    ),
    Case(
        "H5.2",
        "huffman_with_its_end",
        _hpack(b"\0\x01x\x84\xff\xff\xff\xff"),
        connection(COMPRESSION_ERROR),
    ),
    Case("H6.2.3", "never_indexed", _hpack(b"\x10\x01x\x01y"), ANSWERED),
]
