"""Streams of concatenated JSON, in pieces of any size."""

from __future__ import annotations

import orjson
import pytest

from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import MalformedMessage, TooLarge, UpstreamError
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.tensor import as_items
from gateway.protocols.grps.http.codec import HttpCodec
from gateway.protocols.grps.http.json_stream import JsonStreamSplitter
from gateway.wire.http import HttpResponse

VALUES = [{"a": '}{"\\'}, {}, {"b": [{"c": "é\n"}, [1]]}, {"d": "\\\\"}]
TEXT = b"".join(orjson.dumps(value) for value in VALUES)


def pieces(text: bytes, step: int, status: int = 200) -> list[bytes]:
    """Return the messages of a stream that arrives in pieces of *step* bytes."""
    splitter = JsonStreamSplitter(DEFAULT_LIMITS)
    found: list[HttpResponse] = []
    for at in range(0, len(text), step):
        found += splitter.receive(HttpResponse(status, body=(text[at : at + step],)))
    found += splitter.end()
    assert {status} == {piece.status for piece in found}
    return [bytes(piece.view) for piece in found]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("between", [b"", b"\n", b" \r\n\t"])
def test_values_are_split_for_any_piece_size(step: int, between: bytes) -> None:
    """Braces and quotes in text end no value, white space between values is skipped."""
    text = between.join(orjson.dumps(value) for value in VALUES)
    assert VALUES == [orjson.loads(piece) for piece in pieces(text, step)]


def test_bytes_are_returned_unchanged() -> None:
    """A stream that does not begin with a brace is data, even where one follows."""
    assert [b"\x00\xff{", b'}"{'] == pieces(b'\x00\xff{}"{', 3)


@pytest.mark.parametrize("step", [1, 10])
def test_body_of_an_http_error_is_one_message(step: int) -> None:
    """The body is complete at its end, and is not parsed."""
    assert [b'{"a"'] == pieces(b'{"a"', step, 500)


def test_stream_that_ends_within_a_value_is_malformed() -> None:
    """The incomplete value is not dropped silently."""
    with pytest.raises(MalformedMessage, match="ended after"):
        pieces(TEXT + b'{"a', 5)


def test_other_bytes_between_values_are_malformed() -> None:
    """Only an object may follow an object."""
    for step in (7, 100):
        with pytest.raises(MalformedMessage, match="between"):
            pieces(b'{"a":1}x', step)


def test_a_value_over_the_limit_is_rejected() -> None:
    """A value that never ends is not buffered forever."""
    splitter = JsonStreamSplitter(MessageLimits(json_bytes=20))
    with pytest.raises(TooLarge, match="over 20 bytes"):
        splitter.receive(HttpResponse(200, body=(b'{"a":"' + b"x" * 20,)))


def test_a_failure_ends_a_stream_of_bytes() -> None:
    """Bytes that look like JSON are bytes; a message with a failed Status is raised."""
    codec = HttpCodec(DEFAULT_LIMITS, {})
    call = StreamInferRequest(model=ModelRef("m"), request=InferRequest(model=ModelRef("m")))
    splitter = codec.splitter()
    body = b'{"status":{"code":500,"msg":"boom","status":"FAILURE"}}'
    first, second, last = [
        piece
        for data in (b"\xff", b'{"a":1}', body)
        for piece in splitter.receive(HttpResponse(200, body=(data,)))
    ]
    found = [codec.decode_item(call, piece).outputs[0] for piece in (first, second)]
    assert [b"\xff", b'{"a":1}'] == [bytes(as_items(tensor)[0]) for tensor in found]
    with pytest.raises(UpstreamError, match="boom"):
        codec.decode_item(call, last)
