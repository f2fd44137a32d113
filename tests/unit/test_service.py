from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import InferRequest, ServerLiveRequest, ServerReadyRequest
from gateway.ir.errors import Unsupported
from gateway.service import Dispatch, bound_inference
from tests.fakes import ScriptedService


async def test_dispatch_selects_the_method_by_type() -> None:
    """The method for the call's type is called."""

    async def live(_call: ServerLiveRequest) -> bool:
        return True

    assert await Dispatch("it", {ServerLiveRequest: live})(ServerLiveRequest()) is True


async def test_dispatch_rejects_other_types() -> None:
    """A call without a method is Unsupported, and the text names service and call."""
    with pytest.raises(Unsupported, match="it does not support ServerReadyRequest"):
        await Dispatch("it", {})(ServerReadyRequest())


async def test_an_inference_uses_handle_inference() -> None:
    """A service without that method is called directly."""

    class Both:
        async def __call__(self, _call: Any, /) -> Any:
            return "call"

        async def handle_inference(self, _call: InferRequest, /) -> str:
            return "inference"

    assert "inference" == await bound_inference(Both())(InferRequest())
    assert "call" == await bound_inference(ScriptedService("call"))(InferRequest())
