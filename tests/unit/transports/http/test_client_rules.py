"""Headers of requests to upstreams."""

from __future__ import annotations

import time

import pytest

from gateway.transports.http.client_rules import header_fields
from gateway.wire.http import Headers, HttpRequest


@pytest.mark.parametrize("request_id", ["r-1", "", "a\r\nb"])
def test_the_request_id_is_a_header_after_those_of_the_codec(request_id: str) -> None:
    """Accept-Encoding is identity unless the codec sets another."""
    odd_headers = Headers((("Host", "h"), ("grpc-timeout", "1S"), ("X-Odd", "a\nb")))
    field = [("x-request-id", request_id.replace("\r\n", "%0D%0A"))] if request_id else []
    plain = [("X-Odd", "a%0Ab"), ("Accept-Encoding", "identity"), *field]
    coded = [("accept-encoding", "gzip"), *field]
    for _ in range(2):
        for headers, expected in (
            (odd_headers, plain),
            (Headers((("accept-encoding", "gzip"),)), coded),
        ):
            wire = HttpRequest("POST", "/", "", headers, request_id=request_id)
            assert expected == header_fields(wire, None)
            (name, _timeout) = header_fields(wire, time.monotonic() + 5)[-1]
            assert "grpc-timeout" == name
