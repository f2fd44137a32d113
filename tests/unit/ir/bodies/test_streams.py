"""Streams that outlive their call: notification of their end, and mapping."""

from __future__ import annotations

import pytest

from gateway.ir.bodies.streams import (
    MappedStream,
    NotifyingStream,
    close_stream,
    is_streaming,
    map_stream,
    on_stream_end,
)
from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unavailable
from tests.fakes import FakeStream

MODEL = ModelRef("m")
ITEM = InferResponse(model=MODEL, outputs=())
STREAM = StreamInferRequest(model=MODEL, request=InferRequest(model=MODEL))


async def test_end_of_a_stream_is_reported_once() -> None:
    """The end is reported once, although the stream is closed after it."""
    ends: list[BaseException | None] = []
    items = FakeStream([ITEM, ITEM])
    watched = on_stream_end(STREAM, items, ends.append)
    assert [ITEM, ITEM] == [item async for item in watched]
    await close_stream(watched)
    assert ([None], 1) == (ends, items.closed)


async def test_failure_of_a_stream_is_reported_with_its_error() -> None:
    """A failing stream passes its error on."""
    ends: list[BaseException | None] = []
    error = Unavailable("gone")
    watched = NotifyingStream(FakeStream([ITEM, error]), ends.append)
    assert ITEM == await anext(watched)
    with pytest.raises(Unavailable):
        await anext(watched)
    assert [error] == ends


async def test_closing_an_unread_stream_is_reported() -> None:
    """Closing reports the end even before the first read, unlike a generator."""
    ends: list[BaseException | None] = []
    items = FakeStream([ITEM])
    watched = NotifyingStream(items, ends.append)
    await watched.aclose()
    await watched.aclose()
    assert ([None], 2) == (ends, items.closed)


async def test_plain_reply_ends_at_once() -> None:
    """A reply that is not a stream is complete when it is returned."""
    ends: list[BaseException | None] = []
    call = InferRequest(model=MODEL)
    assert on_stream_end(call, ITEM, ends.append) is ITEM
    assert [None] == ends


async def test_mapped_stream_changes_each_reply_and_closes() -> None:
    """The function is applied to each reply; closing reaches the inner stream."""

    async def change(item: InferResponse) -> InferResponse:
        return item.changed(id="changed")

    items = FakeStream([ITEM])
    mapped = map_stream(STREAM, items, lambda inner: MappedStream(inner, change))
    assert ["changed"] == [item.id async for item in mapped]
    await close_stream(mapped)
    assert 1 == items.closed


def test_only_streams_are_mapped() -> None:
    """`map_stream` returns a reply that is not a stream unchanged."""
    call = InferRequest(model=MODEL)
    assert map_stream(call, ITEM, lambda items: items) is ITEM
    assert (True, False) == (is_streaming(STREAM), is_streaming(call))


async def test_closing_an_iterator_without_aclose_is_harmless() -> None:
    """An iterator without `aclose` stays usable."""

    class Bare:
        def __aiter__(self) -> Bare:
            return self

        async def __anext__(self) -> InferResponse:
            return ITEM

    bare = Bare()
    await close_stream(bare)
    assert ITEM == await anext(bare)
