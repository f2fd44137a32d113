"""Hostile HTTP framing: at most one error, then the end of the connection."""

from __future__ import annotations

import pytest

from tests.hostile.judge import CANARY, Patient, attack, refused
from tests.hostile.wire import GOOD, GOOD_BODY, SIMPLE, chunk, chunked, head, post

pytestmark = pytest.mark.hostile

# What hides behind a request that two parsers may read in two ways; it must never be answered.
HIDDEN = head("GET", "/v2/models/hidden")
BODY = chunk(GOOD_BODY)
END = b"0\r\n\r\n"


def _head(first: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([first, *fields]) + b"\r\n\r\n"


REQUEST_LINES: dict[str, bytes] = {
    "empty_lines_only": b"\r\n" * 5 + b"X\r\n\r\n",
    "no_target": b"GET HTTP/1.1",
    "only_method": b"GET",
    "http_0_9": b"GET /v2",
    "http_0_9_slash": b"GET /",
    "version_missing_number": b"GET /v2 HTTP/",
    "version_1": b"GET /v2 HTTP/1",
    "version_letters": b"GET /v2 HTTP/a.b",
    "version_lower": b"GET /v2 http/1.1",
    "version_2_0": b"GET /v2 HTTP/2.0",
    "version_9_9": b"GET /v2 HTTP/9.9",
    "version_1_10": b"GET /v2 HTTP/1.10",
    "version_1_01": b"GET /v2 HTTP/1.01",
    "version_minus": b"GET /v2 HTTP/1.-1",
    "version_huge": b"GET /v2 HTTP/1." + b"1" * 400,
    "version_trailing": b"GET /v2 HTTP/1.1 x",
    "tabs": b"GET\t/v2\tHTTP/1.1",
    "leading_space": b" GET /v2 HTTP/1.1",
    "lower_method": b"get /v2 HTTP/1.1",
    "odd_method": b"G@T /v2 HTTP/1.1",
    "control_in_method": b"G\x01T /v2 HTTP/1.1",
    "long_method": b"G" * 5000 + b" /v2 HTTP/1.1",
    "raw_utf8_target": "GET /v2/models/é HTTP/1.1".encode(),
    "raw_bytes_target": b"GET /v2/models/\xff\xfe HTTP/1.1",
    "nul_in_target": b"GET /v2\x00/models HTTP/1.1",
    "cr_in_target": b"GET /v2\r/models HTTP/1.1",
    "control_in_target": b"GET /v2\x7f HTTP/1.1",
    "space_in_target": b"GET /v2/a b HTTP/1.1",
    "fragment": b"GET /v2#x HTTP/1.1",
    "no_slash": b"GET v2 HTTP/1.1",
    "backslash": b"GET \\v2 HTTP/1.1",
    "question_only": b"GET ? HTTP/1.1",
    "connect_authority": b"CONNECT host:443 HTTP/1.1",
    "connect_path": b"CONNECT /v2 HTTP/1.1",
    "absolute_file": b"GET file:///etc/passwd HTTP/1.1",
    "absolute_no_host": b"GET http:///v2x HTTP/1.1",
    "absolute_bad_port": b"GET http://h:99999999/v2x HTTP/1.1",
    "absolute_bracket": b"GET http://[::1/v2x HTTP/1.1",
    "scheme_only": b"GET http:// HTTP/1.1",
    "target_9000": b"GET /" + b"a" * 9000 + b" HTTP/1.1",
    "target_2_mib": b"GET /" + b"a" * (2 << 20) + b" HTTP/1.1",
    "icap": b"RESPMOD icap://h/x ICAP/1.0",
    "rtsp": b"OPTIONS rtsp://h/x RTSP/1.0",
    "response": b"HTTP/1.1 200 OK",
    "ssh": b"SSH-2.0-OpenSSH_9.6",
    "memcached": b"get " + b"x" * 300,
    "redis": b"*1\r\n$4\r\nPING",
    "proxy_v1": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2",
}
FIELDS: dict[str, tuple[bytes, ...]] = {
    "no_host": (),
    "two_hosts": (b"Host: a", b"Host: b"),
    "host_with_space": (b"Host: a b",),
    "host_with_slash": (b"Host: a/b",),
    "host_with_nul": (b"Host: a\x00b",),
    "host_utf8": ("Host: é".encode(),),
    "no_colon": (b"Host: h", b"nothing"),
    "empty_name": (b"Host: h", b": v"),
    "space_before_colon": (b"Host: h", b"X : v"),
    "leading_space_first": (b" X: v", b"Host: h"),
    "obs_fold": (b"Host: h", b"X: a", b" b"),
    "obs_fold_tab": (b"Host: h", b"X: a", b"\tb"),
    "nul_in_value": (b"Host: h", b"X: a\x00b"),
    "cr_in_value": (b"Host: h", b"X: a\rb"),
    "lf_in_value": (b"Host: h", b"X: a\nb"),
    "bell_in_value": (b"Host: h", b"X: a\x07b"),
    "delete_in_value": (b"Host: h", b"X: a\x7fb"),
    "nul_in_name": (b"Host: h", b"X\x00: a"),
    "paren_in_name": (b"Host: h", b"X(): a"),
    "utf8_name": (b"Host: h", "Xé: a".encode()),
    "count_65": (b"Host: h", *[b"X: a"] * 64),
    "count_5000": (b"Host: h", *[b"X: a"] * 5000),
    "field_20_kib": (b"Host: h", b"X: " + b"a" * 20_480),
    "name_20_kib": (b"Host: h", b"X" * 20_480 + b": a"),
    "total_40_kib": (b"Host: h", *[b"X%d: " % n + b"a" * 4000 for n in range(10)]),
    "total_2_mib": (b"Host: h", *[b"X%d: " % n + b"a" * 8000 for n in range(256)]),
    "bare_lf_between": (b"Host: h\nX: y",),
    "te_and_cl": (b"Host: h", b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "cl_and_te": (b"Host: h", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "cl_0_and_te": (b"Host: h", b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    "two_lengths": (b"Host: h", b"Content-Length: 0", b"Content-Length: 44"),
    "same_lengths": (b"Host: h", b"Content-Length: 5", b"Content-Length: 5"),
    "length_list": (b"Host: h", b"Content-Length: 5, 5"),
    "length_empty": (b"Host: h", b"Content-Length:"),
    "length_plus": (b"Host: h", b"Content-Length: +5"),
    "length_minus": (b"Host: h", b"Content-Length: -5"),
    "length_hex": (b"Host: h", b"Content-Length: 0x5"),
    "length_float": (b"Host: h", b"Content-Length: 5.0"),
    "length_exponent": (b"Host: h", b"Content-Length: 1e1"),
    "length_underscore": (b"Host: h", b"Content-Length: 1_0"),
    "length_full_width": (b"Host: h", "Content-Length: \uff15".encode()),
    "length_spaces": (b"Host: h", b"Content-Length: 5 5"),
    "length_2_64": (b"Host: h", b"Content-Length: 18446744073709551616"),
    "length_2_63": (b"Host: h", b"Content-Length: 9223372036854775808"),
    "length_10_gib": (b"Host: h", b"Content-Length: 10737418240"),
    "length_4301_digits": (b"Host: h", b"Content-Length: " + b"9" * 4301),
    "length_text": (b"Host: h", b"Content-Length: abc"),
    "length_and_space": (b"Host: h", b"Content-Length : 5"),
    "te_xchunked": (b"Host: h", b"Transfer-Encoding: xchunked"),
    "te_identity": (b"Host: h", b"Transfer-Encoding: identity"),
    "te_gzip_chunked": (b"Host: h", b"Transfer-Encoding: gzip, chunked"),
    "te_chunked_gzip": (b"Host: h", b"Transfer-Encoding: chunked, gzip"),
    "te_chunked_twice": (b"Host: h", b"Transfer-Encoding: chunked, chunked"),
    "te_two_fields": (b"Host: h", b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    "te_twice_same": (b"Host: h", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "te_quoted": (b"Host: h", b'Transfer-Encoding: "chunked"'),
    "te_vtab": (b"Host: h", b"Transfer-Encoding: \x0bchunked"),
    "te_parameter": (b"Host: h", b"Transfer-Encoding: chunked;q=1"),
    "te_empty": (b"Host: h", b"Transfer-Encoding:"),
    "te_space_colon": (b"Host: h", b"Transfer-Encoding : chunked"),
    "te_folded": (b"Host: h", b"Transfer-Encoding:", b" chunked"),
    "te_nul": (b"Host: h", b"Transfer-Encoding: chunked\x00"),
    "te_comma": (b"Host: h", b"Transfer-Encoding: ,chunked"),
    "expect_unknown": (b"Host: h", b"Expect: 200-maybe", b"Content-Length: 5"),
    "expect_list": (b"Host: h", b"Expect: 100-continue, x", b"Content-Length: 5"),
}
CHUNKS: dict[str, bytes] = {
    "size_letters": b"zz\r\n" + END,
    "size_minus": b"-1\r\n" + END,
    "size_plus": b"+5\r\nabcde\r\n" + END,
    "size_0x": b"0x5\r\nabcde\r\n" + END,
    "size_empty": b"\r\n" + END,
    "size_underscore": b"1_0\r\n" + b"a" * 16 + b"\r\n" + END,
    "size_full_width": "\uff15\r\nabcde\r\n".encode() + END,
    "size_leading_space": b" 5\r\nabcde\r\n" + END,
    "size_trailing_space": b"5 \r\nabcde\r\n" + END,
    "size_tab": b"5\t\r\nabcde\r\n" + END,
    "size_2_64": b"10000000000000005\r\nabcde\r\n" + END,
    "size_2_63": b"8000000000000000\r\nabcde\r\n" + END,
    "size_17_digits": b"00000000000000000000005\r\nabcde\r\n" * 1 + b"zz" + END,
    "size_100_kib": b"0" * 102_400 + b"5\r\nabcde\r\n" + b"zz" + END,
    "bare_lf_size": b"5\nabcde\r\n" + END,
    "bare_cr_size": b"5\rabcde\r\n" + END,
    "bare_lf_data": b"5\r\nabcde\n" + END,
    "no_end_of_data": b"5\r\nabcde0\r\n\r\n",
    "data_too_long": b"5\r\nabcdefgh\r\n" + END,
    "data_too_short": b"9\r\nabcde\r\n" + END + b"GET",
    "extension_lf": b"5;a\nb\r\nabcde\r\n" + END,
    "extension_nul": b"5;\x00\r\nabcde\r\n" + b"zz" + END,
    "extension_huge": b"5;" + b"a" * 40_000 + b"\r\nabcde\r\n" + b"zz" + END,
    "trailer_no_colon": BODY + b"0\r\nabc\r\n\r\n",
    "trailer_smuggles": BODY + b"0\r\nX: y\n\nGET /v2 HTTP/1.1\r\n\r\n",
    "trailer_huge": BODY + b"0\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "trailers_many": BODY + b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    "end_bare_lf": BODY + b"0\n\n",
    "end_letters": BODY + b"0x\r\n\r\n",
}
FOREIGN: dict[str, bytes] = {
    "http3_preface": b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "tls_hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "sslv2_hello": b"\x80\x2e\x01\x00\x02" + bytes(40),
    "nul_bytes": bytes(4096) + b"\r\n\r\n",
    "high_bytes": b"\xff" * 4096 + b"\r\n\r\n",
    "utf16": "GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n".encode("utf-16"),
    "bom": b"\xef\xbb\xbf" + GOOD,
    "brpc": b"PRPC" + bytes(60) + b"\r\n\r\n",
    "pickle": b"\x80\x04\x95" + bytes(100) + b"\r\n\r\n",
    "newlines": b"\r\n" * 50_000 + b"x\r\n\r\n",
    "bare_cr": b"GET /v2 HTTP/1.1\rHost: h\r\r",
    "bare_lf": b"GET /v2 HTTP/1.1\nHost: h\n\n",
}

CASES: dict[str, bytes] = {
    **{f"line-{key}": _head(line, b"Host: h") for key, line in REQUEST_LINES.items()},
    **{
        f"fields-{key}": _head(b"POST /v2/models/x/infer HTTP/1.1", *fields)
        for key, fields in FIELDS.items()
    },
    **{f"chunk-{key}": chunked(data) for key, data in CHUNKS.items()},
    **{f"foreign-{key}": data for key, data in FOREIGN.items()},
    "te_in_1_0": _head(b"POST /v2 HTTP/1.0", b"Host: h", b"Transfer-Encoding: chunked") + END,
    "upgrade_websocket": head("GET", "/v2x", "Connection: Upgrade", "Upgrade: websocket"),
    "upgrade_h2c": head(
        "GET", "/v2x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"
    ),
}


@pytest.mark.needs("readable_faults", "broken_bodies")
@pytest.mark.parametrize("name", CASES)
def test_invalid_framing_is_rejected_once(patient: Patient, name: str) -> None:
    """After one error or none the connection ends; the request behind it is not run."""
    outcome = attack(patient, CASES[name] + HIDDEN)
    assert refused(outcome), outcome
    assert outcome.closed, outcome


@pytest.mark.needs("readable_faults", "broken_bodies")
@pytest.mark.parametrize(
    "name", [key for key in CASES if len(CASES[key]) < 600 and key.startswith(("f", "c"))]
)
def test_invalid_framing_in_single_bytes_is_rejected_once(patient: Patient, name: str) -> None:
    """The result does not depend on how the bytes are split."""
    data = CASES[name] + HIDDEN
    outcome = attack(patient, *[data[at : at + 1] for at in range(len(data))])
    assert refused(outcome), outcome
    assert outcome.closed, outcome


CUT: dict[str, bytes] = {
    "nothing": b"",
    "half_a_line": b"POST /v2/mod",
    "half_a_head": head("POST", SIMPLE)[:-2],
    "length_too_long": post(GOOD_BODY, length=len(GOOD_BODY) + 1),
    "no_body": post(b"", length=100),
    "half_a_chunk": chunked(BODY[:20]),
    "no_last_chunk": chunked(BODY),
    "half_a_last_chunk": chunked(BODY, b"0\r\n"),
    "half_a_trailer": chunked(BODY, b"0\r\nX: y"),
}


@pytest.mark.parametrize("end", [False, True], ids=["silent", "half_closed"])
@pytest.mark.parametrize("name", CUT)
def test_truncated_requests_time_out(patient: Patient, name: str, end: bool) -> None:
    """A truncated request ends in time, with an error or without a response."""
    outcome = attack(patient, CUT[name], end=end)
    assert refused(outcome), outcome
    assert outcome.closed


LEGAL: dict[str, bytes] = {
    "chunk_extension": chunked(b"%x;a=b\r\n" % len(GOOD_BODY), GOOD_BODY, b"\r\n", END),
    "chunks_of_a_byte": chunked(*[chunk(GOOD_BODY[n : n + 1]) for n in range(len(GOOD_BODY))], END),
    "upper_case_size": chunked(b"%X\r\n" % len(GOOD_BODY), GOOD_BODY, b"\r\n", END),
    "leading_zeros": chunked(b"000%x\r\n" % len(GOOD_BODY), GOOD_BODY, b"\r\n", END),
    "trailer": chunked(BODY, b"0\r\nX: y\r\n\r\n"),
    "absolute_form": post(GOOD_BODY, path=f"http://elsewhere:99{SIMPLE}"),
    "query": post(GOOD_BODY, path=f"{SIMPLE}?a=b&a=%ff"),
    "leading_empty_line": b"\r\n" + GOOD,
    "expect": post(GOOD_BODY, "Expect: 100-continue"),
    "expect_upper": post(GOOD_BODY, "Expect: 100-CONTINUE"),
    "length_zeros": post(GOOD_BODY, length=f"000{len(GOOD_BODY)}"),
    "secrets": post(
        GOOD_BODY,
        f"Authorization: Bearer {CANARY}",
        f"Cookie: session={CANARY}",
        f"X-Api-Key: {CANARY}",
        f"Proxy-Authorization: Basic {CANARY}",
        f"X-Forwarded-For: {CANARY}",
        f"traceparent: {CANARY}",
    ),
    "odd_request_id": post(GOOD_BODY, "X-Request-Id: " + "a" * 5000),
    "utf8_field": post(GOOD_BODY, "X-Name: é"),
    "odd_deadline": post(GOOD_BODY, "grpc-timeout: tomorrow", "X-Request-Timeout: -1"),
    "field_of_8_kib": post(GOOD_BODY, "X: " + "a" * 8000),
    "accept_encodings": post(GOOD_BODY, "Accept-Encoding: " + "gzip;q=0," * 500),
}


@pytest.mark.parametrize("name", LEGAL)
def test_unusual_valid_requests_succeed(patient: Patient, name: str) -> None:
    """An unambiguous request succeeds, and the connection stays usable."""
    outcome = attack(patient, LEGAL[name])
    assert (False, ()) == (outcome.closed, outcome.answers)


TOLERATED: dict[str, bytes] = {
    "two_spaces": _head(b"GET  /v2x  HTTP/1.1", b"Host: h"),
    "user_in_absolute_form": head("GET", "http://user:pass@h/v2x"),
    "empty_host": head("GET", "/v2x", host=""),
    "no_host_in_1_0": b"GET /v2x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "unknown_connection_option": head("GET", "/v2x", "Connection: x, y,,z"),
    "length_of_a_get": head("GET", "/v2x", "Content-Length: 3") + b"abc",
}


@pytest.mark.parametrize("name", TOLERATED)
def test_tolerated_deviations_are_one_request(patient: Patient, name: str) -> None:
    """A deviation with one possible reading is one request, in these cases to an unknown path."""
    outcome = attack(patient, TOLERATED[name])
    assert [404] == [response.status for response in outcome.answers]


@pytest.mark.needs("readable_faults", "broken_bodies")
def test_headers_of_rejected_requests_are_not_exposed(patient: Patient) -> None:
    """No header of a rejected request is returned; the log is checked at the end of the run."""
    fields = (f"Authorization: Bearer {CANARY}", f"Cookie: {CANARY}", f"X-Request-Id: {CANARY}\x01")
    for data in (
        post(b"{", *fields[:2]),
        post(GOOD_BODY, *fields),
        post(GOOD_BODY, *fields[:2], path="/v2/models/nobody/infer"),
        post(GOOD_BODY, *fields[:2], f"Content-Encoding: {CANARY[:0]}x"),
        post(GOOD_BODY, *fields[:2], "Content-Length: 1"),
        post(GOOD_BODY, *fields[:2], path="/elsewhere"),
    ):
        assert refused(attack(patient, data))
