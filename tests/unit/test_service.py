from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import InferRequest, ServerLiveRequest, ServerReadyRequest
from gateway.ir.errors import Unsupported
from gateway.service import Dispatch, inference_entry_of
from tests.fakes import ScriptedService


async def test_dispatch_picks_by_type() -> None:
    """The method of the call's own type answers."""

    async def live(_call: ServerLiveRequest) -> bool:
        return True

    assert await Dispatch("it", {ServerLiveRequest: live})(ServerLiveRequest()) is True


async def test_dispatch_refuses_what_it_has_no_method_for() -> None:
    """A call without a method is Unsupported, and the text names both."""
    with pytest.raises(Unsupported, match="it does not support ServerReadyRequest"):
        await Dispatch("it", {})(ServerReadyRequest())


async def test_an_inference_goes_to_the_method_for_inferences() -> None:
    """A service without such a method is called."""

    class Both:
        async def __call__(self, _call: Any, /) -> Any:
            return "call"

        async def handle_inference(self, _call: InferRequest, /) -> str:
            return "inference"

    assert "inference" == await inference_entry_of(Both())(InferRequest())
    assert "call" == await inference_entry_of(ScriptedService("call"))(InferRequest())
