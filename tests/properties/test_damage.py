"""Damaged messages, through every codec: they are decoded or rejected, and nothing else happens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef, Need, Parameter
from gateway.ir.errors import (
    GatewayError,
    InternalError,
    InvalidTensor,
    MalformedMessage,
    TooLarge,
    Unsupported,
    UpstreamProtocolError,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, items_tensor, raw_tensor
from gateway.wire.http import HttpRequest
from tests.properties.amplified import answered, small_messages
from tests.properties.carries import WAYS, Carries
from tests.properties.chains import Link
from tests.properties.registered import (
    REGISTERED,
    arrived,
    body_of,
    pairs_of,
    with_body,
    with_pairs,
)
from tests.properties.strategies import exchanges
from tests.scheduling import within_processor_s

ALL_WAYS = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

# Ways of one codec read damage alike: they share the examples.
BY_CODEC = {
    codec: [way for way in WAYS if way.codec == codec]
    for codec in sorted({way.codec for way in WAYS})
}

# One way of each codec, and the others among the slow tests.
FIRST_WAYS = {ways[0].name for ways in BY_CODEC.values()}
BIT_BY_BIT = [
    pytest.param(way, id=way.name, marks=() if way.name in FIRST_WAYS else pytest.mark.slow)
    for way in WAYS
]

# A few hundred bytes take microseconds; a wrong size that is believed takes seconds or memory.
_LONGEST_S = 1.0
_LONGEST_TEXT = 20_000
_UPSTREAMS_FAULT = (
    InvalidTensor,
    MalformedMessage,
    TooLarge,
    Unsupported,
    UpstreamProtocolError,
)
_LIES = (0, 1, 7, 127, 128, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = ("-1", "1e999", "null", "NaN", "0x10", "9" * 30, "18446744073709551615", "1.5", "[]", '""')
# Python converts no integer of more than 308 digits to a float, and no text of more than 4,300.
_LONG_WORDS = (
    "9" * 309,
    "-" + "9" * 400,
    "9" * 4301,
    f'"{"9" * 4301}"',
    "9" * 400 + ".5",
    "1e-400",
)
_NUMBER = re.compile(rb"\d+")


@pytest.mark.parametrize("ways", BY_CODEC.values(), ids=BY_CODEC)
@SLOW
@given(data=st.data())
def test_damaged_messages_decode_or_are_rejected(
    ways: Sequence[Carries], data: st.DataObject
) -> None:
    """Changed bits, bytes, numbers, headers and paths decode, or raise a GatewayError."""
    way = data.draw(st.sampled_from(ways), label="way")
    request, response, call = _encoded(way, *data.draw(exchanges(way)))
    sides = Sides(way)
    sides.read_request(data.draw(_damaged(request), label="request"))
    sides.read_response(call, data.draw(_damaged(response), label="answer"))


@pytest.mark.parametrize("codec", sorted(REGISTERED))
@SLOW
@given(data=st.data())
def test_damaged_messages_are_typed_or_rejected(codec: str, data: st.DataObject) -> None:
    """A damaged message never becomes an error that is no GatewayError, at its model either."""
    seed = data.draw(st.sampled_from(small_messages()[codec]))
    seed = replace(seed, wire=data.draw(_damaged(seed.wire)))
    datatype = data.draw(st.sampled_from(list(Datatype)), label="of the model")
    foreign: list[Exception] = []

    def internal(error: Exception, *_: Any) -> InternalError:
        foreign.append(error)
        return InternalError("internal error")

    with patch("gateway.frontend.frontend.internal_error", internal):
        asyncio.run(answered(seed, datatype))
    if foreign:
        raise foreign[0]


@ALL_WAYS
def test_every_prefix_decodes_or_is_rejected(way: Carries) -> None:
    """A message truncated at any byte decodes, or raises a GatewayError."""
    request, response, call = _encoded(way, *_usual(way))
    sides = Sides(way)
    for cut in _prefixes(request):
        sides.read_request(cut)
    for cut in _prefixes(response):
        sides.read_response(call, cut)


@pytest.mark.parametrize("way", BIT_BY_BIT)
def test_every_flipped_bit_decodes_or_is_rejected(way: Carries) -> None:
    """A message with one flipped bit decodes, or raises a GatewayError."""
    request, response, call = _encoded(way, *_usual(way))
    sides = Sides(way)
    for flipped in _bit_by_bit(request):
        sides.read_request(flipped)
    for flipped in _bit_by_bit(response):
        sides.read_response(call, flipped)


def _prefixes(wire: Any) -> Iterator[Any]:
    whole = b"".join(body_of(wire))
    for end in range(len(whole)):
        yield with_body(wire, whole[:end])


def _bit_by_bit(wire: Any) -> Iterator[Any]:
    whole = b"".join(body_of(wire))
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield with_body(wire, bytes(flipped))


def _encoded(way: Carries, call: Call[Any], reply: Any) -> tuple[Any, Any, Call[Any]]:
    """Return a valid request, its response, and the call."""
    link = Link(way, None)
    if isinstance(call, InferRequest) and Need.BATCHING in link.upstream.needs:
        call, reply = call.changed(batch_size=1), reply.changed(batch_size=1)
    request = arrived(link.upstream.encode_call(call))
    response = arrived(link.listener.encode_reply(link.listener.decode_call(request), reply))
    return request, response, call


def _usual(way: Carries) -> tuple[InferRequest, InferResponse]:
    """Return an inference with a bit of everything that *way* carries."""
    every: dict[str, Parameter] = {"b": True, "i": -1, "f": 0.5, "s": "é"}

    def parameters_of(types: frozenset[type]) -> dict[str, Parameter]:
        return {key: value for key, value in every.items() if type(value) in types}

    data = memoryview(bytes(range(8)))
    number = raw_tensor("x", Datatype.INT32, (1, 2), data, parameters_of(way.tensor_parameters))
    text = items_tensor("y", (1, 2), [b"ab", b""])
    tensors: tuple[Tensor, ...] = (number, text)
    if way.most_tensors == 1:
        tensors = (raw_tensor("x", Datatype.INT64, (1,), data),)
    model = way.model or ModelRef("m", "1" if way.versions else "")
    call = InferRequest(
        model=model,
        inputs=tensors,
        outputs=(RequestedOutput("x"), RequestedOutput("y")),
        id="7" if way.ids else "",
        parameters=parameters_of(way.parameters),
    )
    reply_parameters = parameters_of(way.reply_parameters)
    return call, InferResponse(
        model=model, outputs=tensors, id=call.id, parameters=reply_parameters
    )


class Sides:
    """The codecs of both sides of a way, which read one message after another as a gateway's do."""

    def __init__(self, way: Carries) -> None:
        self._listener = way.registered.make(way.listener)
        self._upstream = way.registered.make(way.upstream)

    def read_request(self, wire: Any) -> None:
        """Decode a request; what was read is written again or refused: no half-read value goes on."""
        call = _within_time(lambda: self._listener.decode_call(wire))
        if not isinstance(call, GatewayError):
            _within_time(lambda: self._upstream.encode_call(call))

    def read_response(self, call: Call[Any], wire: Any) -> None:
        """Decode a response, and write what was read for a client."""
        reply = _within_time(lambda: self._upstream.decode_reply(call, wire))
        if isinstance(reply, GatewayError):
            # Sent by the upstream, or its fault: `Upstream` must not blame the client.
            assert reply.origin is not None or isinstance(reply, _UPSTREAMS_FAULT), repr(reply)
        elif reply is not None:
            _within_time(lambda: self._listener.encode_reply(call, reply))


def _within_time(read: Callable[[], Any]) -> Any:
    """Return the result of *read*, or the GatewayError it raises; any other exception fails."""
    found: Any = None
    with within_processor_s(_LONGEST_S):
        try:
            found = read()
        except GatewayError as error:
            found = error
    assert not isinstance(found, GatewayError) or len(found.message) < _LONGEST_TEXT
    return found


@st.composite
def _damaged(draw: DrawFn, wire: Any) -> Any:
    """Draw a wire message with something in it changed."""
    pairs = pairs_of(wire)
    places = ["body"] * 6
    if pairs:
        places += ["pair", "pair"]
    if isinstance(wire, HttpRequest):
        places += ["path"]
    place = draw(st.sampled_from(places))
    if place == "path":
        path = draw(_changed(wire.path.encode())).decode("latin-1")
        method = draw(st.sampled_from([wire.method] * 3 + ["GET", "POST", "PUT", ""]))
        query = draw(st.sampled_from([wire.query, "model=m", "model=%ff&x", "&&=="]))
        return HttpRequest(method, path, query, wire.headers, wire.body)
    if place == "pair":
        index = draw(st.integers(0, len(pairs) - 1))
        name, value = pairs[index]
        text = draw(_changed(value.encode())).decode("latin-1")
        how = draw(st.sampled_from(["changed", "twice", "dropped"]))
        new = {"changed": [(name, text)], "twice": [(name, value), (name, text)], "dropped": []}
        return with_pairs(wire, [*pairs[:index], *new[how], *pairs[index + 1 :]])
    return with_body(wire, draw(_changed(bytes(b"".join(body_of(wire))))))


@st.composite
def _changed(draw: DrawFn, data: bytes) -> bytes:
    """Draw other bytes, near to *data*."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["bit", "lie", "word", "insert", "delete", "cut", "repeat"]))
        if how == "bit" and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        elif how == "lie":
            size = draw(st.sampled_from([1, 2, 4, 8]))
            lie = draw(st.sampled_from(_LIES)) % (1 << 8 * size)
            data = data[:at] + lie.to_bytes(size, "little") + data[at + size :]
        elif how == "word":
            data = draw(_other_number(data))
        elif how == "insert":
            data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]
        elif how == "delete":
            data = data[:at] + data[at + draw(st.integers(1, 8)) :]
        elif how == "cut":
            data = data[:at]
        else:
            data = data[:at] + data[draw(st.integers(0, at)) : at] + data[at:]
    return data


@st.composite
def _other_number(draw: DrawFn, data: bytes) -> bytes:
    """Draw *data* with a decimal number in it changed to another, or to no number."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    match = draw(st.sampled_from(found))
    word = draw(st.sampled_from((*_WORDS, *_LONG_WORDS)) | st.sampled_from(_LIES).map(str))
    return data[: match.start()] + word.encode() + data[match.end() :]
