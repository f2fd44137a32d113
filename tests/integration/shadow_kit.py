"""The shadow process of a gateway without workers."""

from __future__ import annotations

from gateway.app import Gateway
from gateway.shadow.parts import ServingShadow


def shadow_pid(gateway: Gateway) -> int:
    """Return the id of the process."""
    part = gateway.parts._parts["shadow"]
    assert isinstance(part, ServingShadow)
    assert part.keeper is not None
    assert part.keeper.pid is not None
    return part.keeper.pid
