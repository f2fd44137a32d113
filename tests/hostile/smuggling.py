"""Requests that two parsers may read in two ways, with another request hidden in them.

Each gets the hidden bytes: a whole request that one reading runs and the other does not.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.wire import GOOD_BODY, SIMPLE, chunk, head, post

Smuggles = Callable[[bytes], bytes]

END = b"0\r\n\r\n"
_POST = b"POST " + SIMPLE.encode() + b" HTTP/1.1\r\nHost: h\r\n"


def _fields(*fields: bytes) -> bytes:
    return _POST + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def _cl_te(te: bytes, *more: bytes) -> Smuggles:
    """Content-Length covers all; a parser that heeds *te* ends at the last chunk."""
    return lambda hidden: (
        _fields(b"Content-Length: %d" % (len(END) + len(hidden)), te, *more) + END + hidden
    )


def _te_cl(te: bytes, *more: bytes) -> Smuggles:
    """The chunks cover all; a parser that heeds Content-Length ends in the first."""
    return lambda hidden: (
        _fields(te, b"Content-Length: %d" % len(b"%x\r\n" % len(hidden)), *more)
        + chunk(hidden)
        + END
    )


_CHUNKED = b"Transfer-Encoding: chunked"
_TES: dict[str, bytes] = {
    "plain": _CHUNKED,
    "xchunked": b"Transfer-Encoding: xchunked",
    "space_colon": b"Transfer-Encoding : chunked",
    "tab": b"Transfer-Encoding:\tchunked",
    "tab_colon": b"Transfer-Encoding\t: chunked",
    "leading_space": b" Transfer-Encoding: chunked",
    "folded": b"Transfer-Encoding:\r\n chunked",
    "folded_before": b"X: y\r\n Transfer-Encoding: chunked",
    "bare_lf_before": b"X: y\nTransfer-Encoding: chunked",
    "bare_cr_before": b"X: y\rTransfer-Encoding: chunked",
    "twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "twice_turned": b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "list": b"Transfer-Encoding: identity, chunked",
    "list_turned": b"Transfer-Encoding: chunked, identity",
    "gzip_chunked": b"Transfer-Encoding: gzip, chunked",
    "chunked_twice": b"Transfer-Encoding: chunked, chunked",
    "quoted": b'Transfer-Encoding: "chunked"',
    "upper": b"TRANSFER-ENCODING: CHUNKED",
    "vertical_tab": b"Transfer-Encoding: \x0bchunked",
    "form_feed": b"Transfer-Encoding: chunked\x0c",
    "nul": b"Transfer-Encoding: chunked\x00",
    "nbsp": b"Transfer-Encoding: \xa0chunked",
    "name_nul": b"Transfer-Encoding\x00: chunked",
    "name_high": b"Transfer-Encoding\xa0: chunked",
    "underscore": b"Transfer_Encoding: chunked",
    "parameter": b"Transfer-Encoding: chunked;a=b",
    "comma": b"Transfer-Encoding: ,chunked",
    "trailing_comma": b"Transfer-Encoding: chunked,",
    "empty": b"Transfer-Encoding:",
    "long_s": "Transfer-Encoding: chun\u212aed".encode(),
    "connection_lists_it": b"Connection: Transfer-Encoding\r\n" + _CHUNKED,
}


def _length(*values: bytes) -> Smuggles:
    """Several lengths: some readings end before what hides, some behind it."""

    def made(hidden: bytes) -> bytes:
        size = b"%d" % len(hidden)
        fields = [b"Content-Length: " + value.replace(b"N", size) for value in values]
        return _fields(*fields) + hidden

    return made


_LENGTHS: dict[str, Smuggles] = {
    "twice": _length(b"0", b"N"),
    "twice_turned": _length(b"N", b"0"),
    "list": _length(b"0, N"),
    "list_turned": _length(b"N, 0"),
    "same_twice": _length(b"N", b"N"),
    "same_list": _length(b"N, N"),
    "plus": _length(b"+N"),
    "minus": _length(b"-N"),
    "hex": _length(b"0xN"),
    "inner_space": _length(b"N 0"),
    "underscore": _length(b"N_0"),
    "leading_zeros": _length(b"000N"),
    "tab": _length(b"\tN"),
    "vertical_tab": _length(b"\x0bN"),
    "fraction": _length(b"N.0"),
    "exponent": _length(b"Ne0"),
    "empty": _length(b""),
    "overflow": _length(b"18446744073709551616"),
    "comma": _length(b"N,"),
    "quoted": _length(b'"N"'),
}


def _chunks(first: bytes) -> Smuggles:
    """A chunk whose size or end is odd, and what hides behind it."""
    return lambda hidden: _fields(_CHUNKED) + first.replace(b"HIDDEN", hidden) + END + hidden


_CHUNK_LINES: dict[str, Smuggles] = {
    "size_0x": _chunks(b"0x0\r\n\r\n"),
    "size_plus": _chunks(b"+0\r\n\r\n"),
    "size_minus": _chunks(b"-1\r\n\r\n"),
    "size_space": _chunks(b"0 \r\n\r\n"),
    "size_leading_space": _chunks(b" 0\r\n\r\n"),
    "size_overflow": _chunks(b"10000000000000000\r\n\r\n"),
    "size_overflow_5": _chunks(b"100000005\r\nabcde\r\n"),
    "size_letters": _chunks(b"g\r\n\r\n"),
    "size_bare_lf": _chunks(b"1\na\r\n"),
    "size_bare_cr": _chunks(b"1\ra\r\n"),
    "end_bare_lf": _chunks(b"1\r\na\n"),
    "end_missing": _chunks(b"1\r\na"),
    "extension": _chunks(b"1;a=b\r\na\r\n"),
    "extension_bare_lf": _chunks(b"1;a\nb\r\na\r\n"),
    "extension_bare_cr": _chunks(b"1;a\rb\r\na\r\n"),
    "extension_quoted_crlf": _chunks(b'1;a="\r\n"\r\na\r\n'),
    "extension_hides": _chunks(b"2;\nxx\r\nHIDDEN\r\n"),
    "too_long": _chunks(b"1\r\nabc\r\n"),
    "trailer_length": lambda hidden: (
        _fields(_CHUNKED, b"Trailer: Content-Length")
        + chunk(GOOD_BODY)
        + b"0\r\nContent-Length: %d\r\n\r\n" % len(hidden)
        + hidden
    ),
    "trailer_coding": lambda hidden: (
        _fields(_CHUNKED) + chunk(GOOD_BODY) + b"0\r\n" + _CHUNKED + b"\r\n\r\n" + hidden
    ),
    "trailer_bare_lf": lambda hidden: (
        _fields(_CHUNKED) + chunk(GOOD_BODY) + b"0\r\nX: y\n\n" + hidden
    ),
    "trailer_folded": lambda hidden: (
        _fields(_CHUNKED) + chunk(GOOD_BODY) + b"0\r\nX: y\r\n z\r\n\r\n" + hidden
    ),
    "no_last_line": lambda hidden: _fields(_CHUNKED) + chunk(GOOD_BODY) + b"0\r\n" + hidden,
}


def _behind(first: bytes) -> Smuggles:
    """A request without a body, or with an early response, and another request behind it."""
    return lambda hidden: first.replace(b"SIZE", b"%d" % len(hidden)) + hidden


_HEADS: dict[str, Smuggles] = {
    "get_with_length": _behind(head("GET", "/v2", "Content-Length: SIZE")),
    "head_with_length": _behind(head("HEAD", "/v2", "Content-Length: SIZE")),
    "delete_with_length": _behind(head("DELETE", "/v2", "Content-Length: SIZE")),
    "get_chunked": lambda hidden: head("GET", "/v2", _CHUNKED.decode()) + chunk(hidden) + END,
    "unknown_path_with_length": _behind(head("POST", "/elsewhere", "Content-Length: SIZE")),
    "unknown_path_chunked": lambda hidden: (
        head("POST", "/elsewhere", _CHUNKED.decode()) + chunk(hidden) + END
    ),
    "unknown_model": _behind(head("POST", "/v2/models/nobody/infer", "Content-Length: SIZE")),
    "expect": _behind(head("POST", SIMPLE, "Expect: 100-continue", "Content-Length: SIZE")),
    "expect_and_chunked": lambda hidden: (
        head("POST", SIMPLE, "Expect: 100-continue", _CHUNKED.decode()) + chunk(hidden) + END
    ),
    "expect_on_get": _behind(head("GET", "/v2", "Expect: 100-continue", "Content-Length: SIZE")),
    "expect_unknown": _behind(
        head("POST", SIMPLE, "Expect: y 100-continue", "Content-Length: SIZE")
    ),
    "expect_twice": _behind(
        head("POST", SIMPLE, "Expect: 100-continue", "Expect: x", "Content-Length: SIZE")
    ),
    "zero_length": _behind(post(b"")),
    "pipelined": _behind(post(GOOD_BODY)),
    "pipelined_get": _behind(head("GET", "/v2")),
    "empty_lines_before": _behind(b"\r\n\r\n" + post(GOOD_BODY)),
    "absolute_form": _behind(head("GET", "http://elsewhere/v2")),
    "absolute_form_with_length": _behind(head("POST", f"http://e{SIMPLE}", "Content-Length: SIZE")),
    "two_hosts": _behind(head("GET", "/v2", "Host: two")),
    "no_host": _behind(head("GET", "/v2", host=None)),
    "host_with_crlf": _behind(head("GET", "/v2", host="h\r\nContent-Length: 3")),
    "http_1_0_keep_alive": _behind(
        b"POST /v2 HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: SIZE\r\n\r\n"
    ),
    "http_1_0_chunked": lambda hidden: (
        b"POST /v2 HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunk(hidden)
        + END
    ),
    "http_0_9": _behind(b"GET /v2\r\n"),
    "http_1_2": _behind(b"GET /v2 HTTP/1.2\r\nHost: h\r\nContent-Length: SIZE\r\n\r\n"),
    "upgrade_h2c": _behind(
        head(
            "GET",
            "/v2",
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
        )
    ),
    "upgrade_h2c_with_length": _behind(
        head("POST", SIMPLE, "Connection: Upgrade", "Upgrade: h2c", "Content-Length: SIZE")
    ),
    "upgrade_websocket": _behind(
        head(
            "GET",
            "/v2",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        )
    ),
    "h2_preface": _behind(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "connection_lists_length": _behind(
        head("POST", SIMPLE, "Connection: Content-Length", "Content-Length: SIZE")
    ),
    "space_in_target": _behind(head("GET", "/v2 HTTP/1.1\r\nContent-Length: 3\r\nX:")),
    "nul_in_value": _behind(head("GET", "/v2", "X: a\0b", "Content-Length: SIZE")),
    "name_without_colon": _behind(head("GET", "/v2", "Content-Length SIZE")),
    "empty_name": _behind(head("GET", "/v2", ": y", "Content-Length: SIZE")),
    "folded_length": _behind(head("POST", SIMPLE, "Content-Length:\r\n SIZE")),
    "length_behind_a_bare_lf": _behind(head("POST", SIMPLE, "X: y\nContent-Length: SIZE")),
    "length_behind_a_bare_cr": _behind(head("POST", SIMPLE, "X: y\rContent-Length: SIZE")),
    "length_with_space_colon": _behind(head("POST", SIMPLE, "Content-Length : SIZE")),
    "length_in_another_name": _behind(head("POST", SIMPLE, "Content_Length: SIZE")),
    "head_ends_with_lf": _behind(b"GET /v2 HTTP/1.1\nHost: h\nContent-Length: SIZE\n\n"),
    "method_override": _behind(
        head("POST", SIMPLE, "X-HTTP-Method-Override: HEAD", "Content-Length: SIZE")
    ),
}

CORPUS: dict[str, dict[str, Smuggles]] = {
    "cl-te": {name: _cl_te(te) for name, te in _TES.items()},
    "te-cl": {name: _te_cl(te) for name, te in _TES.items()},
    "length": _LENGTHS,
    "chunks": _CHUNK_LINES,
    "heads": _HEADS,
}
