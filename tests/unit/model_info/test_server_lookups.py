from __future__ import annotations

import asyncio

from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import Unavailable
from gateway.ir.metadata import ModelMetadata
from gateway.model_info.server_lookups import ServerDialects
from tests.fakes import ScriptedService, settle

M = ModelRef("m")
CONTEXT = Context("fake", (("x-route", "canary"),), "id-1")
FOUND = ModelMetadata(name="m", dialect="mlserver")


async def test_the_dialect_of_a_model_is_requested_once() -> None:
    """Metadata tell it, by the route of the request, and it is remembered."""
    service = ScriptedService(FOUND)
    dialects = ServerDialects(service)
    assert "mlserver" == await dialects.find(M, CONTEXT)
    assert "mlserver" == await dialects.find(M, CONTEXT)
    (question,) = service.calls
    assert isinstance(question, ModelMetadataRequest)
    assert (M, CONTEXT) == (question.model, question.context)


async def test_requests_share_a_question() -> None:
    """Requests that arrive while one waits do not ask again; one that leaves ends no question."""
    service = ScriptedService()
    dialects = ServerDialects(service)
    first, second = (asyncio.ensure_future(dialects.find(M, CONTEXT)) for _ in range(2))
    await settle()
    (question,) = service.waiting
    first.cancel()
    await settle()
    question.set_result(FOUND)
    assert "mlserver" == await second


async def test_a_model_without_metadata_has_no_dialect() -> None:
    """A failed question leaves the refusal as it is, and is not repeated at once."""
    service = ScriptedService(Unavailable("down"))
    dialects = ServerDialects(service)
    assert "" == await dialects.find(M, CONTEXT)
    assert "" == await dialects.find(M, CONTEXT)
    assert 1 == len(service.calls)
