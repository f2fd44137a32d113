"""Cache by element: rows that do not depend on one another are looked up and kept one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unavailable, UpstreamProtocolError
from gateway.ir.tensors.rows import IndependentRows
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.policies.cache import Cache
from tests.fakes import settle
from tests.unit.policies.test_cache import Metered

M = ModelRef("m")
TEXTS = IndependentRows()
PADDED = IndependentRows(fills=(("ids", 9),))


def request(*texts: str, rows: IndependentRows | None = TEXTS, **fields: Any) -> InferRequest:
    inputs = (items_tensor("text", (len(texts),), [text.encode() for text in texts]),)
    return InferRequest(model=M, inputs=inputs, rows=rows, **fields)


def ids(*rows: Sequence[int], lengths: tuple[int, ...]) -> InferRequest:
    inputs = (array_tensor("ids", np.array(rows, np.int64)),)
    return InferRequest(model=M, inputs=inputs, rows=PADDED.of(lengths))


class Model:
    """Returns the length of each text, or the ids of each row as states."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.error: Exception | None = None
        self.ready = asyncio.Event()
        self.ready.set()

    async def __call__(self, call: Call[Any], /) -> Any:
        assert isinstance(call, InferRequest)
        tensor = call.inputs[0]
        if tensor.name == "ids":
            found = as_numpy(tensor)
            self.seen.append(found.tolist())
            output = array_tensor("states", found[:, :, None])
        else:
            texts = [bytes(item).decode() for item in as_items(tensor)]
            self.seen.append(texts)
            output = self.lengths(texts)
        await self.ready.wait()
        if self.error is not None:
            raise self.error
        return InferResponse(model=M, outputs=(output,), id=call.id)

    def lengths(self, texts: Sequence[str]) -> Tensor:
        return array_tensor("length", np.array([[len(text)] for text in texts], np.float32))


class OneRow(Model):
    """Returns one row for any number of texts."""

    def lengths(self, texts: Sequence[str]) -> Tensor:
        return super().lengths(["".join(texts)])


def values(reply: InferResponse) -> list[float]:
    found: list[float] = as_numpy(reply.outputs[0]).reshape(-1).tolist()
    return found


async def test_only_absent_rows_are_requested() -> None:
    """Rows come from earlier requests of other sizes, in the order of the request."""
    model, meter = Model(), Metered()
    cache = Cache(model, meter=meter)
    assert [1, 2] == values(await cache(request("a", "bb", id="1")))
    reply = await cache(request("ccc", "bb", "a", "dddd", id="2"))
    assert ([3, 2, 1, 4], "2") == (values(reply), reply.id)
    assert [2, 4] == values(await cache(request("bb", "dddd")))
    assert [["a", "bb"], ["ccc", "dddd"]] == model.seen
    assert ["miss", "hit", "hit", "miss", "hit", "hit"] == meter.outcomes


async def test_a_request_with_one_row_has_the_same_key() -> None:
    """A call of any protocol with one of the rows is served from them, and the reverse."""
    model = Model()
    cache = Cache(model)
    await cache(request("a", "bb"))
    assert [2] == values(await cache(request("bb", rows=None)))
    await cache(request("ccc", rows=None))
    assert [3, 1] == values(await cache(request("ccc", "a")))
    assert [["a", "bb"], ["ccc"]] == model.seen


async def test_rows_that_may_depend_on_one_another_are_one_entry() -> None:
    """Without the mark, a request is cached as a whole."""
    model = Model()
    cache = Cache(model)
    await cache(request("a", "bb", rows=None))
    await cache(request("bb", "a", rows=None))
    assert 2 == len(model.seen)


async def test_equal_rows_are_requested_once() -> None:
    """A text that occurs twice in a request is one row of the call."""
    model = Model()
    assert [1, 2, 1] == values(await Cache(model)(request("a", "bb", "a")))
    assert [["a", "bb"]] == model.seen


async def test_equal_concurrent_requests_share_their_call() -> None:
    """Two requests with the same absent rows make one call; its error is that of both."""
    model = Model()
    model.ready.clear()
    cache = Cache(model)
    tasks = [asyncio.ensure_future(cache(request("a", "bb", id=name))) for name in "12"]
    await settle()
    model.error = Unavailable("down")
    model.ready.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [Unavailable, Unavailable] == list(map(type, found))
    assert [["a", "bb"]] == model.seen
    model.error = None
    assert [1, 2] == values(await cache(request("a", "bb")))


async def test_padding_is_no_part_of_a_row() -> None:
    """Tokens of a text are found whatever the longest row of the request is."""
    model = Model()
    cache = Cache(model)
    await cache(ids([1, 9], [2, 3], lengths=(1, 2)))
    reply = await cache(ids([4, 5, 6], [1, 9, 9], [2, 3, 9], lengths=(3, 1, 2)))
    assert [[[1, 9], [2, 3]], [[4, 5, 6]]] == model.seen
    states = as_numpy(reply.outputs[0])[:, :, 0]
    assert [[4, 5, 6], [1, 0, 0], [2, 3, 0]] == states.tolist()


async def test_a_reply_without_rows_is_not_kept() -> None:
    """A model that returns one row for all texts is called each time."""
    model = OneRow()
    cache = Cache(model)
    for _ in range(2):
        assert [3] == values(await cache(request("a", "bb")))
    assert 2 == len(model.seen)


async def test_rows_of_different_sizes_are_an_error_of_the_model() -> None:
    """A model whose rows have another size in each call has no reply for several of them."""

    class Growing(Model):
        def lengths(self, texts: Sequence[str]) -> Tensor:
            return array_tensor("length", np.zeros((len(texts), len(texts[0])), np.float32))

    cache = Cache(Growing())
    await cache(request("a", "b"))
    with pytest.raises(UpstreamProtocolError, match="different shapes"):
        await cache(request("a", "ccc"))
