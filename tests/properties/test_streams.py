"""Streams: each item survives encoding and decoding, whatever pieces the transport makes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.ir.calls import InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import UpstreamError
from gateway.wire.http import HttpResponse
from tests.properties.carries import WAYS, Carries
from tests.properties.chains import bare
from tests.properties.registered import arrived
from tests.properties.strategies import inferences, responses

M = ModelRef("m")
# Both halves speak of the same messages: the envelope of Triton's streams, and events of JSON.
STREAMED = [
    way
    for way in WAYS
    if way.name in ("oip.grpc-triton", "oip.grpc-gateway", "oip.grpc-ovms", "oip.http-mlserver")
]
SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def test_four_ways_are_streamed() -> None:
    """The names above exist in tests/properties/carries.py."""
    assert 4 == len(STREAMED)


@pytest.mark.parametrize("way", STREAMED, ids=lambda way: way.name)
@SLOW
@given(data=st.data())
def test_streams_round_trip(way: Carries, data: st.DataObject) -> None:
    """The call, its items, and errors among them are decoded as they were encoded."""
    call = data.draw(inferences(way))
    items = data.draw(st.lists(responses(way, call), max_size=3))
    if data.draw(st.booleans(), label="an error at the end"):
        failed = UpstreamError(data.draw(st.from_regex(r"[!-~]( ?[!-~]){0,20}", fullmatch=True)))
        items.append(InferResponse(model=M, outputs=(), is_final=False, error=failed))
    upstream, listener = (
        way.registered.make(way.upstream),
        way.registered.make(way.listener),
    )
    stream = StreamInferRequest(model=call.model, context=call.context, request=call)
    read = listener.decode_call(arrived(upstream.encode_call(stream)))
    assert isinstance(read, StreamInferRequest)
    assert bare(call) == bare(read.request)
    parts = [arrived(listener.encode_item(read, item)) for item in items]
    found = [upstream.decode_item(stream, part) for part in _cut(upstream, parts, data)]
    assert len(items) == len(found)
    for sent, got in zip(items, found, strict=True):
        if sent.error is not None:
            assert got.error is not None
            assert sent.error.message == got.error.message
            continue
        final = sent.is_final if way.codec == "oip.grpc" else False
        assert way.as_carried(sent).changed(is_final=final, id=call.id) == way.as_carried(got)


def _cut(codec: Any, parts: list[Any], data: st.DataObject) -> list[Any]:
    """Return the messages from other pieces than those encoded, where the codec allows it."""
    if not parts or not hasattr(codec, "splitter"):
        return parts
    whole = b"".join(bytes(part.view) for part in parts)
    places = data.draw(st.lists(st.integers(0, len(whole)), max_size=4), label="cut at")
    edges = [0, *sorted(places), len(whole)]
    splitter = codec.splitter()
    found: list[Any] = []
    for start, end in itertools.pairwise(edges):
        piece = HttpResponse(200, parts[0].headers, (memoryview(whole[start:end]),))
        found += splitter.receive(piece)
    return [*found, *splitter.end()]
