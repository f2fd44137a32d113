from __future__ import annotations

import pytest

from gateway.ir.calls import ServerLiveRequest, ServerReadyRequest
from gateway.ir.errors import Unsupported
from gateway.service import Dispatch


async def test_dispatch_picks_by_type() -> None:
    """The method of the call's own type answers."""

    async def live(_call: ServerLiveRequest) -> bool:
        return True

    assert await Dispatch("it", {ServerLiveRequest: live})(ServerLiveRequest()) is True


async def test_dispatch_refuses_what_it_has_no_method_for() -> None:
    """A call without a method is Unsupported, and the text names both."""
    with pytest.raises(Unsupported, match="it does not support ServerReadyRequest"):
        await Dispatch("it", {})(ServerReadyRequest())
