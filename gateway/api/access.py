"""Authenticator and Authoriser: who calls, and what they may do."""

from collections.abc import Awaitable
from typing import Any, Protocol

from msgspec import Struct

from gateway.ir.calls import Call
from gateway.ir.context import Metadata
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import Identity

__all__ = ["Authenticator", "Authoriser", "Credentials", "Identity", "Unauthenticated"]


class Credentials(Struct, frozen=True):
    """What a request brings to name its client.

    Attributes:
        metadata: Headers or gRPC metadata, with names in lower case.
        address: The IP address of the client; "" on a unix socket.
        listener: The name of the listener.
    """

    metadata: Metadata = ()
    address: str = ""
    listener: str = ""


class Authenticator(Protocol):
    """Names the client of a request after its head, before memory is reserved."""

    def authenticate(self, credentials: Credentials, /) -> Identity | Awaitable[Identity]:
        """Return the client.

        Raises:
            Unauthenticated: A credential is missing or wrong.
        """


class Authoriser(Protocol):
    """Decides whether a client may make a call."""

    def authorise(self, identity: Identity, call: Call[Any], /) -> bool | Awaitable[bool]:
        """Return whether the call is allowed."""
