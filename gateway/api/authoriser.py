"""Authoriser: decides what a client may do."""

from collections.abc import Awaitable
from typing import Any, Protocol

from gateway.ir.calls import Call
from gateway.ir.identity import Identity


class Authoriser(Protocol):
    """Decides whether a client may make a call."""

    def authorise(self, identity: Identity, call: Call[Any], /) -> bool | Awaitable[bool]:
        """Return whether the call is allowed."""
