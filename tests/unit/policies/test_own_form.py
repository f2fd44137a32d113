"""Whole messages between the layers: questions go as they came, and what reads tensors refuses."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelMetadataRequest,
    OpaqueCall,
    rewritten,
    words_of,
)
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import InvalidRequest, NotFound, Unsupported
from gateway.policies.access.rules import Size
from gateway.policies.access.sizes import size_of
from gateway.policies.own_form import AskInOwnForm
from gateway.policies.rename import Rename
from gateway.wire.http import HttpRequest

MODEL = ModelRef("m")
WIRE = HttpRequest("POST", "/v1/models/m:predict", body=(b"12345",))
REFUSAL = InvalidRequest("the model has no such signature")
WHOLE = Origin("tfs.http", WIRE, whole="tfs.http")
UNREAD = Origin("tfs.http", WIRE, whole="tfs.http", refusal=REFUSAL)


def question(origin: Origin | None) -> ModelMetadataRequest:
    """Return a question of a client."""
    return ModelMetadataRequest(model=MODEL, context=Context(origin=origin))


class Target:
    """A target that replies to opaque calls with a value, or raises it."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.calls: list[Call[Any]] = []

    async def __call__(self, call: Call[Any], /) -> Any:
        """Reply to *call*."""
        self.calls.append(call)
        if type(call) is OpaqueCall and isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


async def test_a_whole_question_reaches_the_server_as_an_opaque_call() -> None:
    """The reply is the server's, and the call has the model of the question."""
    target = Target(Origin("tfs.http", None))
    assert await AskInOwnForm(target)(question(WHOLE)) is target.reply
    (call,) = target.calls
    assert isinstance(call, OpaqueCall)
    assert (MODEL, WHOLE) == (call.model, call.message)


async def test_a_target_of_another_form_gets_the_question() -> None:
    """It refuses the opaque call, and the question has no whole message then."""
    target = Target(Unsupported("another protocol"))
    await AskInOwnForm(target)(question(WHOLE))
    last = target.calls[-1]
    assert isinstance(last, ModelMetadataRequest)
    assert last.context.origin == WHOLE.rewritten()


async def test_a_target_of_another_form_refuses_what_only_the_server_reads() -> None:
    """The client gets the error of its message, not that of the target."""
    with pytest.raises(InvalidRequest, match="no such signature"):
        await AskInOwnForm(Target(Unsupported("another protocol")))(question(UNREAD))


@pytest.mark.parametrize(
    "error",
    [NotFound("no model"), Unsupported("by the server", origin=Origin("tfs.http", None))],
)
async def test_an_error_of_the_server_is_the_reply(error: Exception) -> None:
    """Only a target that cannot send the message on gets the question."""
    target = Target(error)
    with pytest.raises(type(error)):
        await AskInOwnForm(target)(question(WHOLE))
    assert 1 == len(target.calls)


@pytest.mark.parametrize("origin", [None, WHOLE.rewritten()])
async def test_other_questions_pass_unchanged(origin: Origin | None) -> None:
    """A message that is not whole has nothing to send on."""
    target = Target(None)
    call = question(origin)
    await AskInOwnForm(target)(call)
    assert [call] == target.calls


def test_only_another_model_keeps_a_whole_message() -> None:
    """Any other change means that the bytes say something else."""
    call = InferRequest(model=MODEL, context=Context(origin=WHOLE))
    assert WHOLE == call.changed(model=ModelRef("n")).context.origin
    assert call.changed(parameters={"a": 1}).context.origin is None


def test_a_refusal_survives_every_change() -> None:
    """A call without tensors is never taken for a request without inputs."""
    call = InferRequest(model=MODEL, context=Context(origin=UNREAD)).changed(parameters={"a": 1})
    origin = call.context.origin
    assert origin is not None
    assert ("", REFUSAL) == (origin.whole, origin.refusal)
    with pytest.raises(InvalidRequest):
        rewritten(call)


async def test_a_rename_of_tensors_refuses_what_it_cannot_read() -> None:
    """The server would get the names of the client."""
    call = InferRequest(model=MODEL, context=Context(origin=UNREAD))
    with pytest.raises(InvalidRequest, match="no such signature"):
        await Rename(Target(None), inputs={"a": "b"})(call)


def test_an_unread_message_counts_with_its_body() -> None:
    """Rules and quotas bound what nobody has read."""
    call = InferRequest(model=MODEL, context=Context(origin=UNREAD))
    assert Size(5, 5) == size_of(call)


@pytest.mark.parametrize(
    ("call", "words"),
    [(question(None), "model metadata"), (InferRequest(), "infer")],
)
def test_calls_have_words_for_clients(call: Call[Any], words: str) -> None:
    """Errors name no class."""
    assert words == words_of(call)
