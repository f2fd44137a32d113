"""Header blocks of responses to plain requests over HTTP/2."""

from __future__ import annotations

from gateway.transports.http2.hpack import NO_ENTRIES, decode_block
from gateway.transports.http2.request_stream import _block
from gateway.wire.http import ExtendedHeaders, Headers, HttpResponse


def test_fields_of_one_response_leave_the_block_of_the_others_cached() -> None:
    """They follow those of the codec, which are written once for all responses."""
    kept = Headers((("Content-Type", "application/json"),))
    cached = []
    for left in (b"2", b"1"):
        headers = ExtendedHeaders(kept, (("RateLimit", left.decode()), ("Date", "today")))
        fields, _ = decode_block(_block(HttpResponse(200, headers)), NO_ENTRIES, 1 << 16)
        expected = [(b"content-type", b"application/json"), (b"ratelimit", left)]
        assert [(b":status", b"200"), *expected, (b"date", b"today")] == fields
        cached.append(kept._read[1])
    assert cached[0] is cached[1]
