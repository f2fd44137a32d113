"""Authentication: asks who sends each request, as soon as its head is known.

The servers of all carriers use this before they reserve memory, take a slot or read a body, and
refuse requests in the form of their carrier: `http.exchange`, `grpc.identification` and
`stream.identification`.  Whether a connection asks is chosen when it begins.
"""

import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from gateway.api.access import Authenticator, Credentials, Fields, Peer
from gateway.ir.context import Client
from gateway.ir.errors import GatewayError, Unauthenticated
from gateway.ir.identity import Identity
from gateway.ir.limits import is_blank
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.connection_count import client_address
from gateway.wire.grpc import Metadata
from gateway.wire.heads.fields import pairs_without
from gateway.wire.http import Headers

MAX_DRAINED_BYTES: Final = 64 * 1024
"""The rest of a larger request is not read after a refusal."""

F = TypeVar("F", Headers, Metadata)

_CHALLENGE: Final = 'Bearer realm="tensor-gateway"'
_USER: Final = struct.Struct("3i")  # pid, uid, gid


def _nothing(_peer: Peer) -> AbstractSet[str]:
    return frozenset()


class Authentication:
    """Names the clients of one listener.

    Args:
        authenticator: Knows them.
        public: Paths and methods that ask for the health of the server.
        hidden: Returns the fields of requests that are removed after it was asked: credentials.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        public: AbstractSet[str] = frozenset(),
        hidden: Callable[[Peer], AbstractSet[str]] = _nothing,
    ) -> None:
        self._authenticate = authenticator.authenticate
        self._public = frozenset(public)
        self._hidden = hidden

    def client(
        self, caller: IdentifiedCaller, fields: Fields, path: str, data: str = ""
    ) -> Client | Awaitable[Client]:
        """Return the client of a request. Raises GatewayError, with a client that has no name.

        Args:
            caller: The far end of the connection.
            fields: The headers or metadata of the request.
            path: Its path or method.
            data: What frames carry instead of headers.
        """
        try:
            found = self._authenticate(Credentials(fields, caller.peer, data, path in self._public))
        except GatewayError as error:
            error.client = caller.unnamed(fields)
            raise
        if isinstance(found, Identity):
            return caller.identified(fields, found)
        return _later(caller, fields, found)

    def visible(self, caller: IdentifiedCaller, fields: F) -> F:
        """Return the fields of a request without its credentials; the same object if it has none.

        Args:
            caller: The far end of the connection.
            fields: Headers or metadata.
        """
        names = self._hidden(caller.peer)
        if not names:
            return fields
        last, names_then, known = caller.visible
        if last is fields and names_then is names:
            return known  # type: ignore[no-any-return]  # of the same type as these fields
        found: F
        if isinstance(fields, Headers):
            # Headers of one template have the same names at the same places.
            is_equal = (
                names_then is names
                and isinstance(last, Headers)  # a connection may have calls of gRPC, too
                and last.positions is fields.positions
            )
            found = fields.without(names, known.positions if is_equal else None)
        else:
            found = pairs_without(fields, names)
        caller.visible = fields, names, found
        return found


async def _later(caller: IdentifiedCaller, fields: Fields, found: Awaitable[Identity]) -> Client:
    try:
        return caller.identified(fields, await found)
    except GatewayError as error:
        error.client = caller.unnamed(fields)
        raise


def challenge(error: Unauthenticated) -> str:
    """Return the value of `WWW-Authenticate` for *error*. Source: RFC 6750 3."""
    return f'{_CHALLENGE}, error="invalid_token"' if error.was_sent else _CHALLENGE


def peer_of(transport: Any) -> Peer:
    """Return the far end of a connection: its address, and what its certificate or kernel says."""
    address = client_address(transport)
    sock = transport.get_extra_info("socket")
    user = None
    if sock is not None and sock.family == socket.AF_UNIX:
        _, user, _ = _USER.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _USER.size)
        )
    handshake = transport.get_extra_info("ssl_object")
    certificate = None if handshake is None else handshake.getpeercert()
    return Peer(address, tuple(_names(certificate or {})), user)


def client_names(alternatives: Iterable[tuple[str, Any]], common: Iterable[str]) -> Iterator[str]:
    """Yield the names of a verified certificate: URIs, DNS names, common names; none is blank.

    A URI that begins as a name of another kind does is none: it could stand for that name.  DNS
    names are in lower case, because they are compared without case (RFC 5280 7.2).

    Args:
        alternatives: The kind of each alternative name, "URI", "DNS" or another one, and its value.
        common: The common names.
    """
    found = [each for each in alternatives if isinstance(each[1], str) and not is_blank(each[1])]
    for kind, value in found:
        if kind == "URI" and not value.lower().startswith(("dns:", "cn:")):
            yield value
    yield from (f"dns:{value.lower()}" for kind, value in found if kind == "DNS")
    yield from (f"cn:{value}" for value in common if not is_blank(value))


def kind_of_name(name: str) -> str:
    """Return the kind of an alternative name where nothing tells it.

    An address, of a machine or of a mailbox, is no DNS name.
    """
    if "://" in name:
        return "URI"
    is_address = ":" in name or "@" in name or name.replace(".", "").isdecimal()
    return "other" if is_address else "DNS"


def _names(certificate: Any) -> Iterator[str]:
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    common = (value for kind, value in subject if kind == "commonName")
    return client_names(certificate.get("subjectAltName", ()), common)
