"""Who calls: what an authenticator sees of a request, and the client that it names."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from msgspec import Struct

from gateway.ir.identity import Identity

Fields = Iterable[tuple[str, str | bytes]]
"""The headers or the metadata of a request. Names of headers may have capitals."""


class Peer:
    """The far end of one connection.

    Args:
        address: Its IP address; "" for a unix socket.
        names: Names in its verified certificate: URIs, `dns:NAME`, `cn:NAME`.
        user_id: The user of the process at the other end of a unix socket; None elsewhere.

    Attributes:
        data: What an authenticator keeps of the connection; None at first.
    """

    __slots__ = ("address", "data", "names", "user_id")

    def __init__(
        self, address: str = "", names: tuple[str, ...] = (), user_id: int | None = None
    ) -> None:
        self.address = address
        self.names = names
        self.user_id = user_id
        self.data: Any = None


class Credentials(Struct, frozen=True, eq=False):
    """What a request and its connection show of their sender.

    Attributes:
        fields: Its headers or metadata. Equal heads of a connection are often the same object.
        peer: Its connection.
        data: What frames carry instead of headers; "" for nothing.
        is_public: It asks for the health of the server, which may be public.
    """

    fields: Fields
    peer: Peer
    data: str = ""
    is_public: bool = False

    def __repr__(self) -> str:
        return f"Credentials of {self.peer.address or 'a connection'}"


class Authenticator(Protocol):
    """Names the client of each request, before its body is read."""

    def authenticate(self, credentials: Credentials, /) -> Identity | Awaitable[Identity]:
        """Return the client. Raises Unauthenticated, Overloaded, Unavailable."""
        ...
