"""Framers of the registry: the same frames from any pieces of the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.wire.stream import Frame, Framer
from tests.properties.carries import WAYS, Carries
from tests.properties.registered import arrived
from tests.properties.strategies import exchanges

STREAMS = [way for way in WAYS if way.registered.carrier == "stream"]

pytestmark = pytest.mark.skipif(not STREAMS, reason="no registered protocol has a byte stream")


@given(data=st.data())
def test_any_split_of_the_bytes_reads_the_same_frames(data: st.DataObject) -> None:
    """Concatenated requests and responses are split into the same frames again."""
    way = data.draw(st.sampled_from(STREAMS))
    for sender, receiver, frames in _sides(data, way):
        sent = [b"".join(map(bytes, sender.send(frame))) for frame in frames]
        separate = [found for one in sent for found in receiver.receive(one)]
        assert [frame.correlation for frame in frames] == [frame.correlation for frame in separate]
        whole = b"".join(sent)
        cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=8).map(sorted))
        found: list[Frame] = []
        for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            if start < stop:  # no bytes at all mean the end
                found += receiver.receive(whole[start:stop])
        found += receiver.receive(b"")
        assert [_payload(frame) for frame in separate] == [_payload(frame) for frame in found]
        if way.registered.binding.is_ordered:  # else a payload has its number as well
            assert [_payload(frame) for frame in frames] == [_payload(frame) for frame in found]


@given(data=st.data())
def test_a_stream_that_ends_within_a_frame_is_an_error(data: st.DataObject) -> None:
    """Whole frames are returned before, and an incomplete frame never is."""
    way = data.draw(st.sampled_from(STREAMS))
    for sender, receiver, frames in _sides(data, way):
        whole = b"".join(map(bytes, sender.send(frames[0])))
        end = data.draw(st.integers(1, len(whole) - 1))
        assert [] == receiver.receive(whole[:end])
        with pytest.raises(GatewayError):
            receiver.receive(b"")


@given(data=st.data(), noise=st.binary(min_size=1, max_size=64))
def test_any_bytes_are_frames_or_an_error(data: st.DataObject, noise: bytes) -> None:
    """A framer returns frames or raises a GatewayError."""
    way = data.draw(st.sampled_from(STREAMS))
    for _, receiver, frames in _sides(data, way):
        try:
            found = receiver.receive(noise)
        except GatewayError:
            continue
        assert sum(len(_payload(frame)) for frame in found) <= len(noise)
        assert frames


def _sides(data: st.DataObject, way: Carries) -> list[tuple[Framer, Framer, list[Frame]]]:
    """Draw the frames that clients send to servers, and those that servers send to clients."""
    binding = way.registered.binding
    drawn = data.draw(st.lists(exchanges(way), min_size=1, max_size=3))
    listener, upstream = way.registered.make(way.listener), way.registered.make(way.upstream)
    numbered = not binding.is_ordered
    requests = [
        Frame(upstream.encode_call(call).payload, number if numbered else None)
        for number, (call, _) in enumerate(drawn)
    ]
    responses = [
        Frame(
            listener.encode_reply(listener.decode_call(arrived(request)), reply).payload,
            request.correlation,
        )
        for request, (_, reply) in zip(requests, drawn, strict=True)
    ]
    limits = DEFAULT_LIMITS
    return [
        (binding.client_framer(limits), binding.server_framer(limits), requests),
        (binding.server_framer(limits), binding.client_framer(limits), responses),
    ]


def _payload(frame: Frame) -> bytes:
    return b"".join(map(bytes, frame.payload))
