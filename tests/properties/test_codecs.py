"""Codecs of the registry: calls and replies survive one codec and two, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy
from tests.properties.carries import CARRIES, WAYS, Carries
from tests.properties.chains import bare, chain, send_call
from tests.properties.conftest import Run
from tests.properties.registered import REGISTERED, body_of
from tests.properties.strategies import exchanges

ALL_WAYS = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
PAIRS = [
    (one, other, one.meet(other)) for one in WAYS for other in WAYS if one.codec != other.codec
]
# Drawing whole exchanges is slow by nature; how slow depends on the machine.
SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

# More than any codec joins to a message's head.
_MANY = 4096


@pytest.mark.parametrize("codec", REGISTERED)
def test_every_codec_declares_what_it_carries(codec: str) -> None:
    """Each codec of the registry has an entry in tests/properties/carries.py."""
    assert codec in {way.codec for way in CARRIES}, (
        f"{codec} has no entry in tests/properties/carries.py: say there what it cannot carry, "
        "and the properties and the matrix take it in"
    )


@ALL_WAYS
@SLOW
@given(data=st.data())
def test_calls_and_replies_round_trip(run: Run, way: Carries, data: st.DataObject) -> None:
    """decode_call(encode_call(c)) is c, and decode_reply(encode_reply(r)) is r."""
    call, reply = data.draw(exchanges(way))
    service, end, _ = chain(call, reply, way)
    got = run(send_call(service, call))
    assert bare(call) == bare(end.call)
    assert way.as_carried(reply) == way.as_carried(got)


@SLOW
@given(data=st.data())
def test_calls_and_replies_round_trip_through_two_codecs(run: Run, data: st.DataObject) -> None:
    """Only the parts that both codecs carry are compared."""
    one, other, both = data.draw(st.sampled_from(PAIRS), label="pair")
    call, reply = data.draw(exchanges(both))
    service, end, _ = chain(call, reply, one, other)
    got = run(send_call(service, call))
    found = bare(end.call)
    if both.needs_id and isinstance(call, InferRequest) and not call.id:
        found = found.changed(id="")  # one cannot carry an id, the other makes one up
    if both.asks_by_name and not both.selects and isinstance(found, InferRequest):
        found = found.changed(outputs=())  # all of them, by name
    assert bare(call) == found
    assert both.as_carried(reply) == both.as_carried(got)


@ALL_WAYS
def test_binary_tensors_are_views_of_their_message(run: Run, way: Carries) -> None:
    """A decoded tensor of any datatype that is carried as it is shares the memory of its message."""
    carried = (way.datatypes & way.reply_datatypes) - way.copied
    assert carried
    for datatype in [each for each in Datatype if each.size_bytes and each in carried]:
        _check_views(run, way, datatype)


def _check_views(run: Run, way: Carries, datatype: Datatype) -> None:
    values = np.zeros((1, _MANY), datatype.numpy_dtype)
    sent = array_tensor("x", values, datatype)
    call = InferRequest(model=way.model or ModelRef("m"), inputs=(sent,), id="1")
    reply = InferResponse(model=ModelRef("m"), outputs=(sent,))
    service, end, links = chain(call, reply, way)
    got = run(send_call(service, call))
    assert isinstance(end.call, InferRequest)
    assert way.binary is _shares(end.call.inputs[0], links[0].request), datatype
    assert way.reply_binary is _shares(got.outputs[0], links[0].response), datatype


@pytest.mark.parametrize("way", [way for way in WAYS if way.binary], ids=lambda way: way.name)
def test_binary_tensors_are_encoded_without_a_copy(way: Carries) -> None:
    """The message contains a view of a large tensor."""
    values = np.arange(_MANY, dtype="<f4")
    sent = array_tensor("x", values.reshape(1, _MANY))
    call = InferRequest(model=way.model or ModelRef("m"), inputs=(sent,), id="1", batch_size=1)
    wire = way.registered.make(way.upstream).encode_call(call)
    parts = [np.frombuffer(part, np.uint8) for part in body_of(wire) if len(part)]
    assert any(np.shares_memory(part, values) for part in parts)


def _shares(tensor: Tensor, wire: Any) -> bool:
    (whole,) = body_of(wire)
    return bool(np.shares_memory(as_numpy(tensor), np.frombuffer(whole, np.uint8)))
