"""Streams that outlive their call: whoever took something for one learns of its end."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unavailable
from gateway.ir.streams import (
    MappedStream,
    NotifyingStream,
    close_stream,
    is_streaming,
    map_stream,
    on_stream_end,
)
from tests.fakes import FakeStream

MODEL = ModelRef("m")
ITEM = InferResponse(model=MODEL, outputs=())
STREAM = StreamInferRequest(model=MODEL, request=InferRequest(model=MODEL))


async def test_end_is_told_once_when_the_stream_ends() -> None:
    """The end of a stream is told once, though it is closed after that."""
    ends: list[BaseException | None] = []
    items = FakeStream([ITEM, ITEM])
    watched = on_stream_end(STREAM, items, ends.append)
    assert [ITEM, ITEM] == [item async for item in watched]
    await close_stream(watched)
    assert ([None], 1) == (ends, items.closed)


async def test_failure_is_told_with_its_error() -> None:
    """A stream that fails tells what went wrong."""
    ends: list[BaseException | None] = []
    error = Unavailable("gone")
    watched = NotifyingStream(FakeStream([ITEM, error]), ends.append)
    assert ITEM == await anext(watched)
    with pytest.raises(Unavailable):
        await anext(watched)
    assert [error] == ends


async def test_stream_closed_before_it_began_is_told() -> None:
    """A stream nobody reads still ends when it is closed: a generator would not notice."""
    ends: list[BaseException | None] = []
    items = FakeStream([ITEM])
    watched = NotifyingStream(items, ends.append)
    await watched.aclose()
    await watched.aclose()
    assert ([None], 2) == (ends, items.closed)


async def test_plain_reply_ends_at_once() -> None:
    """A reply that is no stream is complete when it is there."""
    ends: list[BaseException | None] = []
    call = InferRequest(model=MODEL)
    assert on_stream_end(call, ITEM, ends.append) is ITEM
    assert [None] == ends


async def test_mapped_changes_each_answer_and_closes() -> None:
    """Each answer goes through the function; closing reaches the stream beneath."""

    async def change(item: InferResponse) -> InferResponse:
        return item.changed(id="changed")

    items = FakeStream([ITEM])
    mapped = map_stream(STREAM, items, lambda inner: MappedStream(inner, change))
    assert ["changed"] == [item.id async for item in mapped]
    await close_stream(mapped)
    assert 1 == items.closed


def test_only_streams_are_mapped() -> None:
    """A reply that is no stream passes `map_stream` as it is."""
    call = InferRequest(model=MODEL)
    assert map_stream(call, ITEM, lambda items: items) is ITEM
    assert (True, False) == (is_streaming(STREAM), is_streaming(call))


async def test_closing_what_cannot_be_closed_is_harmless() -> None:
    """An iterator without `aclose` is left alone."""

    class Bare:
        def __aiter__(self) -> Bare:
            return self

        async def __anext__(self) -> InferResponse:
            return ITEM

    bare = Bare()
    await close_stream(bare)
    assert ITEM == await anext(bare)
