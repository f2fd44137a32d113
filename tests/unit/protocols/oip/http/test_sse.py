"""Server-sent events: written whole, split from pieces of any size."""

from __future__ import annotations

import pytest

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.oip.http.sse import EVENT_HEADERS, event, json_event
from gateway.wire.event_stream import EventSplitter
from gateway.wire.http import HttpResponse

TEXT = b'data: {"a": 1}\n\ndata: {"b": "x"}\r\n\r\n: a comment\n\nid: 7\ndata:{\ndata: }\n\n'
FOUND = [b'{"a": 1}', b'{"b": "x"}', b"{\n}"]


def cut(pieces: list[bytes], limits: MessageLimits = DEFAULT_LIMITS) -> list[bytes]:
    splitter = EventSplitter(limits)
    found = []
    for piece in pieces:
        found += [bytes(each.view) for each in splitter.receive(HttpResponse(200, body=(piece,)))]
    assert [] == splitter.end()
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_events_are_split_from_pieces_of_any_size(size: int) -> None:
    """Several data lines are joined; comments and other fields are ignored."""
    assert FOUND == cut([TEXT[at : at + size] for at in range(0, len(TEXT), size)])


def test_events_survive_a_round_trip() -> None:
    """A written event is read with the same data."""
    parts = [event(b"{}", b"x"), json_event({"error": "no\nway"})]
    assert [b"{}x", b'{"error":"no\\nway"}'] == cut([bytes(each.view) for each in parts])


def test_a_stream_must_end_between_events() -> None:
    """What is no data at the end raises MalformedMessage; a last event needs no empty line."""
    splitter = EventSplitter(DEFAULT_LIMITS)
    (first,) = splitter.receive(HttpResponse(200, body=(b"data: {}\n\ndata: {",)))
    (rest,) = splitter.end()
    assert (b"{}", b"{") == (bytes(first.view), bytes(rest.view))
    with pytest.raises(MalformedMessage, match="ended after"):
        cut([b'{"model_name": "an answer that is no stream"}'])
    assert [] == cut([b"\n"])


def test_an_event_has_a_limit() -> None:
    """The size of an event is limited."""
    small = MessageLimits(json_bytes=32)
    assert [b"x" * 20] == cut([b"data: " + b"x" * 20 + b"\n\n"], small)
    with pytest.raises(TooLarge, match="over 32 bytes") as caught:
        cut([b"data: " + b"x" * 32], small)
    assert "json_bytes" == caught.value.limit


def test_error_response_is_not_a_stream() -> None:
    """A response with an error status is one message, returned when it is complete."""
    splitter = EventSplitter(DEFAULT_LIMITS)
    for piece in (b'{"error":', b' "no"}'):
        assert [] == splitter.receive(HttpResponse(404, body=(piece,)))
    (whole,) = splitter.end()
    assert (404, b'{"error": "no"}') == (whole.status, bytes(whole.view))


def test_stream_with_an_error_status_is_split_into_events() -> None:
    """Triton's `generate_stream` may have status 400 and a stream of events."""
    splitter = EventSplitter(DEFAULT_LIMITS)
    body = b'data: {"error":"no"}\n\ndata: {"a":1}\n\n'
    found = splitter.receive(HttpResponse(400, EVENT_HEADERS, (body,)))
    assert [b'{"error":"no"}', b'{"a":1}'] == [bytes(each.view) for each in found]
    assert {200} == {each.status for each in found}
    assert [] == splitter.end()


def test_error_response_has_a_limit() -> None:
    """The size of an error response is limited as well."""
    with pytest.raises(TooLarge, match="over 32 bytes"):
        EventSplitter(MessageLimits(json_bytes=32)).receive(HttpResponse(500, body=(b"x" * 33,)))
