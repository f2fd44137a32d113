from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import Call, ServerLiveRequest, ServerReadyRequest
from gateway.ir.errors import Unsupported
from gateway.service import Dispatch, Service, stack
from tests.fakes import ScriptedService


def noting(name: str, notes: list[str]) -> Any:
    def layer(inner: Service) -> Service:
        async def service(call: Call[Any], /) -> Any:
            notes.append(name)
            return await inner(call)

        return service

    return layer


async def test_the_first_layer_sees_the_call_first() -> None:
    """Layers are called in the order they are listed."""
    notes: list[str] = []
    service = stack([noting("a", notes), noting("b", notes)], ScriptedService(True))
    assert await service(ServerLiveRequest()) is True
    assert ["a", "b"] == notes


async def test_dispatch_picks_by_type() -> None:
    """The method of the call's own type answers."""

    async def live(_call: ServerLiveRequest) -> bool:
        return True

    assert await Dispatch("it", {ServerLiveRequest: live})(ServerLiveRequest()) is True


async def test_dispatch_refuses_what_it_has_no_method_for() -> None:
    """A call without a method is Unsupported, and the text names both."""
    with pytest.raises(Unsupported, match="it does not support ServerReadyRequest"):
        await Dispatch("it", {})(ServerReadyRequest())
