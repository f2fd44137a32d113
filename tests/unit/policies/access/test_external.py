"""AskAuthoriser: an authoriser of a package allows or denies each call."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.api.layer import Entries
from gateway.ir.calls import Call, InferRequest, ModelReadyRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.ir.errors import AccessDenied, InternalError, Overloaded
from gateway.ir.identity import GATEWAY, Identity
from gateway.policies.access.external import AskAuthoriser
from tests.fakes import ScriptedService

M = ModelRef("m")


class Answering:
    """Gives one answer, or raises it, and notes whom it was asked about."""

    def __init__(self, answer: Any, *, is_async: bool = False) -> None:
        self._answer = answer
        self._is_async = is_async
        self.clients: list[str] = []

    def authorise(self, identity: Identity, call: Call[Any], /) -> Any:
        self.clients.append(identity.name)
        return self._later() if self._is_async else self._now()

    def _now(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def _later(self) -> Any:
        return self._now()


def layer(authoriser: Answering, service: ScriptedService) -> AskAuthoriser:
    return AskAuthoriser(Entries(service, service, service), authoriser, "a")


def by(identity: Identity) -> Context:
    return Context(client=Client(identity=identity))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [InferRequest, ModelReadyRequest])
async def test_a_call_is_allowed_or_denied(kind: Any, is_async: bool) -> None:
    """A denied call reaches nobody, whether the authoriser is a coroutine or not."""
    call = kind(model=M, context=by(Identity("fraud")))
    service = ScriptedService(always="reply")
    yes, no = Answering(True, is_async=is_async), Answering(False, is_async=is_async)
    assert "reply" == await layer(yes, service)(call)
    assert ["fraud"] == yes.clients
    with pytest.raises(AccessDenied, match="the client 'fraud' may not do this"):
        await layer(no, service)(call)
    assert 1 == len(service.calls)


async def test_calls_of_the_gateway_itself_need_no_decision() -> None:
    """Its own probes and questions are not those of a client."""
    service, no = ScriptedService(always="reply"), Answering(False)
    question: Any = ModelReadyRequest(model=M, context=by(GATEWAY))
    assert "reply" == await layer(no, service)(question)
    assert [] == no.clients


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_fault_costs_its_own_call(is_async: bool) -> None:
    """The call is not made, and the log names the authoriser."""
    service = ScriptedService(always="reply")
    failing = Answering(ZeroDivisionError("of the package"), is_async=is_async)
    with capture_logs() as lines, pytest.raises(InternalError):
        await layer(failing, service)(InferRequest(model=M))
    assert ["authoriser 'a'"] == [line["part"] for line in lines]
    assert [] == service.calls


async def test_an_authoriser_may_refuse_in_its_own_words() -> None:
    """A `GatewayError` reaches the client as it is."""
    with pytest.raises(Overloaded, match="ask later"):
        await layer(Answering(Overloaded("ask later")), ScriptedService())(InferRequest(model=M))
