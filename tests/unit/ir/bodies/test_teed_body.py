"""Bodies that are kept while they are piped: complete or not at all, and within the budget."""

from __future__ import annotations

from gateway.ir.bodies.streamed_inputs import streaming_body_of, with_buffered_body
from gateway.ir.bodies.teed_body import TeeBudget, TeedBody, tee_body, with_kept_body
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.tensors.data import RawData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_raw, streamed_tensor
from tests.fakes import FakeArriving

RECEIVED = Tensor("here", Datatype.UINT8, (2,), RawData(memoryview(b"ab")))


class Sink:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, piece: memoryview, /) -> None:
        self.pieces.append(bytes(piece))


def call(source: FakeArriving) -> InferRequest:
    inputs = [
        streamed_tensor(name, Datatype.UINT8, (size,), StreamedData(source, start, size))
        for name, start, size in (("a", 2, 3), ("b", 5, 5))
    ]
    context = Context(origin=Origin("oip.http", b"{}"))
    return InferRequest(model=ModelRef("m"), inputs=(RECEIVED, *inputs), context=context)


def teed(source: FakeArriving, limit_bytes: int = 100) -> tuple[InferRequest, TeedBody, TeeBudget]:
    budget = TeeBudget(limit_bytes)
    changed, found = tee_body(call(source), budget)
    assert found is not None
    return changed, found, budget


def test_piped_body_is_kept() -> None:
    """The sink receives all bytes, and the call can be rebuilt with them; its origin stays."""
    source, sink = FakeArriving(b"{}abcdefgh", 2), Sink()
    changed, body, budget = teed(source)
    assert streaming_body_of(changed) is body
    assert changed.context.origin is not None
    assert body.kept() is None
    body.pipe_to(sink)
    assert (sink.pieces, body.is_started, body.remaining_bytes) == ([b"abcdefgh"], True, 0)
    content = body.kept()
    assert content is not None
    rebuilt = with_kept_body(changed, body.start, content)
    assert [bytes(as_raw(each)) for each in rebuilt.inputs] == [b"ab", b"abc", b"defgh"]
    assert budget.used_bytes == 8
    body.release()
    body.release()
    assert (budget.used_bytes, body.kept()) == (0, None)


async def test_buffered_body_is_kept() -> None:
    """A body that a layer reads whole is kept, too."""
    changed, body, _ = teed(FakeArriving(b"{}abcdefgh", 2))
    buffered = await with_buffered_body(changed)
    assert isinstance(buffered, InferRequest)
    assert bytes(as_raw(buffered.inputs[2])) == b"defgh"
    content = body.kept()
    assert content is not None
    assert bytes(content) == b"abcdefgh"


def test_body_over_the_budget_is_piped_and_not_kept() -> None:
    """The budget limits the kept bytes, never the piped bytes."""
    sink = Sink()
    _, body, budget = teed(FakeArriving(b"{}abcdefgh", 2), limit_bytes=7)
    body.pipe_to(sink)
    assert sink.pieces == [b"abcdefgh"]
    assert (body.kept(), budget.used_bytes) == (None, 0)


def test_an_incomplete_body_is_not_kept() -> None:
    """A body has no kept bytes until it is complete."""
    _, body, _ = teed(FakeArriving(b"{}abcdefgh", 2))
    body.write(memoryview(b"abc"))
    assert body.kept() is None
    body.write(memoryview(b"defgh"))
    content = body.kept()
    assert content is not None
    assert bytes(content) == b"abcdefgh"


def test_a_received_call_has_no_tee() -> None:
    """A call whose inputs are received is returned unchanged."""
    received = InferRequest(model=ModelRef("m"), inputs=(RECEIVED,))
    assert tee_body(received, TeeBudget(100)) == (received, None)
