"""Server-sent events: written whole, cut out of pieces wherever these were cut."""

from __future__ import annotations

import pytest

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.oip.http.sse import EVENT_HEADERS, EventSplitter, event, json_event
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
def test_events_are_found_however_they_are_cut(size: int) -> None:
    """Data of several lines is joined; comments and other fields are passed over."""
    assert FOUND == cut([TEXT[at : at + size] for at in range(0, len(TEXT), size)])


def test_what_is_written_is_read() -> None:
    """An event is its own twin."""
    parts = [event(b"{}", b"x"), json_event({"error": "no\nway"})]
    assert [b"{}x", b'{"error":"no\\nway"}'] == cut([bytes(each.view) for each in parts])


def test_a_stream_must_end_between_events() -> None:
    """A stream that was broken off shows, whatever stood in it."""
    with pytest.raises(MalformedMessage, match=r"ended after 7 bytes of an event.*b'data: \{'"):
        cut([b"data: {}\n\ndata: {"])
    with pytest.raises(MalformedMessage, match="ended after"):
        cut([b'{"model_name": "an answer that is no stream"}'])
    assert [] == cut([b"\n"])


def test_an_event_has_a_limit() -> None:
    """What is held of one event is bounded."""
    small = MessageLimits(json_bytes=32)
    assert [b"x" * 20] == cut([b"data: " + b"x" * 20 + b"\n\n"], small)
    with pytest.raises(TooLarge, match="over 32 bytes") as caught:
        cut([b"data: " + b"x" * 32], small)
    assert "json_bytes" == caught.value.limit


def test_an_error_is_no_stream() -> None:
    """An answer with another status is one message, when all of it is there."""
    splitter = EventSplitter(DEFAULT_LIMITS)
    for piece in (b'{"error":', b' "no"}'):
        assert [] == splitter.receive(HttpResponse(404, body=(piece,)))
    (whole,) = splitter.end()
    assert (404, b'{"error": "no"}') == (whole.status, bytes(whole.view))


def test_a_stream_that_begins_with_an_error_was_one_text() -> None:
    """Triton's `generate_stream` has the status 400 then, and goes on."""
    splitter = EventSplitter(DEFAULT_LIMITS)
    body = b'data: {"error":"no"}\n\ndata: {"a":1}\n\n'
    found = splitter.receive(HttpResponse(400, EVENT_HEADERS, (body,)))
    assert [b'{"error":"no"}', b'{"a":1}'] == [bytes(each.view) for each in found]
    assert {200} == {each.status for each in found}
    assert [] == splitter.end()


def test_an_error_has_a_limit() -> None:
    """What is held of it is bounded as well."""
    with pytest.raises(TooLarge, match="over 32 bytes"):
        EventSplitter(MessageLimits(json_bytes=32)).receive(HttpResponse(500, body=(b"x" * 33,)))
