"""Single: one answer from a model that gives any number of them."""

from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelReadyRequest, StreamInferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import Decoupled, NotFound, Unsupported, UpstreamError
from gateway.ir.tensor import items_tensor
from gateway.policies.single_reply import SingleReply
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")
CALL = InferRequest(model=M, context=Context(request_id="r"))
STREAM = StreamInferRequest(model=M, context=CALL.context, request=CALL)
OUTPUT = items_tensor("Y", (1,), [b"y"])
ITEM = InferResponse(model=M, outputs=(OUTPUT,), final=False)
END = InferResponse(model=M, outputs=())
REFUSED = Decoupled("ModelInfer RPC doesn't support models with decoupled transaction policy")


async def test_a_model_that_wants_a_stream_gets_one() -> None:
    """The one answer of its stream is the answer; the next call asks with a stream at once."""
    streams = [FakeStream([ITEM]), FakeStream([ITEM, END])]
    service = ScriptedService(REFUSED, *streams)
    single = SingleReply(service)
    for _ in range(2):
        assert ITEM.changed(final=True) == await single(CALL)
    assert [CALL, STREAM, STREAM] == service.calls
    assert [1, 1] == [stream.closed for stream in streams]


@pytest.mark.parametrize(
    ("items", "count"), [([], "no response"), ([ITEM, ITEM, ITEM], "more than one response")]
)
async def test_another_number_of_answers_is_said(items: list[InferResponse], count: str) -> None:
    """No answer, or several, is an error that names the way out; the stream is closed."""
    stream = FakeStream(items)
    with pytest.raises(
        Unsupported, match=f"decoupled model 'm' sent {count}; use a streaming call"
    ):
        await SingleReply(ScriptedService(REFUSED, stream))(CALL)
    assert 1 == stream.closed


async def test_an_answer_that_is_an_error_is_raised() -> None:
    """An error in the stream is the answer."""
    failed = InferResponse(model=M, outputs=(), final=False, error=UpstreamError("no"))
    with pytest.raises(UpstreamError, match="no"):
        await SingleReply(ScriptedService(REFUSED, FakeStream([failed])))(CALL)


async def test_everything_else_passes() -> None:
    """Answers, other errors, other questions and streams are not touched."""
    stream = FakeStream([ITEM])
    service = ScriptedService(END, NotFound("none"), Unsupported("no"), True, stream)
    single = SingleReply(service)
    assert END is await single(CALL)
    for kind in (NotFound, Unsupported):
        with pytest.raises(kind):
            await single(CALL)
    assert await single(ModelReadyRequest(model=M))
    assert stream is await single(STREAM)


async def test_forgets_the_oldest_of_too_many_models() -> None:
    """What is remembered is bounded; a model that is forgotten is asked as at first."""
    service = ScriptedService(always=_refuses)
    single = SingleReply(service)
    for number in range(1025):
        await single(InferRequest(model=ModelRef(f"m{number}")))
    for number, expected in ((1024, 1), (0, 2)):
        del service.calls[:]
        await single(InferRequest(model=ModelRef(f"m{number}")))
        assert expected == len(service.calls)


def _refuses(call: object) -> FakeStream:
    if isinstance(call, InferRequest):
        raise REFUSED
    return FakeStream([ITEM])
