"""Exchanges whose requests name their clients: who calls is asked after the head."""

from collections.abc import Awaitable
from typing import Any

from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.ir import errors
from gateway.ir.context import Client
from gateway.ir.identity import ANONYMOUS
from gateway.transports.authentication import MAX_DRAINED_BYTES
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.client_shares import ClientShares
from gateway.transports.http.cors import is_preflight
from gateway.transports.http.exchange import Exchange
from gateway.transports.http.faults import HttpError, text_response
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.shared_responses import SharedResponses
from gateway.transports.memory_budget import UNLIMITED
from gateway.transports.reservation import Reservation
from gateway.wire.errors import HTTP_STATUS
from gateway.wire.http import NO_HEADERS, Headers, HttpRequest, with_headers


class AuthenticatedExchange(Exchange):
    """An exchange that asks for the client before it reserves memory or reads a body."""

    __slots__ = ("_client", "_denial", "_pending")

    _client: Client | None
    _denial: errors.GatewayError | None
    _pending: Awaitable[Client] | None

    def _try_immediate(self) -> HttpRequest | None:
        self._client = self._denial = self._pending = None
        listener, incoming = self._listener, self._incoming
        head = self._head = incoming.head(listener.limits)
        caller, authentication = self._connection.client.caller, listener.authentication
        assert isinstance(caller, IdentifiedCaller)  # noqa: S101  # see `is_authenticated`
        assert authentication is not None  # noqa: S101
        if listener.cors is not None and is_preflight(head.method, head.headers):
            self._client = caller.identified(head.headers, ANONYMOUS)
            return super()._try_immediate()
        try:
            found = authentication.client(caller, head.headers, head.path)
        except errors.GatewayError as error:
            self._denial = error
            return None
        if not isinstance(found, Client):
            self._pending = found
            return None
        self._client = found
        wire = super()._try_immediate()
        headers = authentication.visible(caller, head.headers)
        if wire is None or (headers is head.headers and wire.client is found):
            return wire
        return replace(wire, headers=headers, client=found)

    async def _receive(self) -> HttpRequest | None:
        if self._pending is not None:
            try:
                client = self._client = await self._pending
            except errors.GatewayError as error:
                self._denial = error
            else:
                wire = super()._try_immediate()
                if wire is not None:
                    return replace(wire, client=client, headers=self._visible())
        if self._denial is not None:
            await self._deny(self._denial)
            return None
        wire = await super()._receive()
        # Another request of the connection may have named another client meanwhile.
        if wire is None:
            return None
        return replace(wire, client=self._client, headers=self._visible())

    def _visible(self) -> Headers:
        """Return the headers without credentials."""
        head, caller = self._head, self._connection.client.caller
        authentication = self._listener.authentication
        if head is None or authentication is None or not isinstance(caller, IdentifiedCaller):
            return NO_HEADERS
        return authentication.visible(caller, head.headers)

    async def _deny(self, error: errors.GatewayError) -> None:
        """Send *error*, after the rest of a small body; a larger one is not read."""
        head, incoming = self._head, self._incoming
        assert head is not None  # noqa: S101  # set by `_try_immediate`
        error.__traceback__ = None
        length, waits = head.length, head.has_expectation
        if not incoming.is_complete and not waits and 0 < (length or 0) <= MAX_DRAINED_BYTES:
            held = Reservation(UNLIMITED, None)  # of a client that may have none of the budget
            try:
                await incoming.body(length, self._listener.limits, held)
            except errors.GatewayError:
                self._should_close = True  # its framing is broken, and the client is refused anyway
            finally:
                held.close()
        try:
            self._frontend, _ = self._listener.handler_of(head.path)
        except HttpError:
            await self._deny_unserved(error)
        else:
            wire = HttpRequest(head.method, head.path, head.query, self._visible())
            self._frontend.note_request(wire, error)
            await self._refuse(error)

    async def _deny_unserved(self, error: errors.GatewayError) -> None:
        """Send *error* for a path that nothing serves."""
        status = HTTP_STATUS[error.code]
        response = text_response(status, error.message, self._report(error, status))
        await self._send(with_headers(response, self._hints(error)))

    def _identify(self, error: errors.GatewayError) -> None:
        super()._identify(error)
        error.metadata = self._visible().lowered
        if self._client is not None:
            error.client = self._client


class _AuthenticatedSharedExchange(AuthenticatedExchange, SharedResponses):
    """One whose response web pages of other origins may read."""

    __slots__ = ()


def is_authenticated(listener: ListenerState, client: ClientShares) -> bool:
    """Return whether requests of a connection name their clients.

    Those of a connection that was accepted before the listener asked for it do not: it is drained.
    """
    return listener.authentication is not None and isinstance(client.caller, IdentifiedCaller)


def http1_exchange(listener: ListenerState, client: ClientShares) -> type[Any]:
    """Return the class of the exchanges of a connection of HTTP/1."""
    if not is_authenticated(listener, client):
        return Exchange if listener.cors is None else SharedResponses
    return AuthenticatedExchange if listener.cors is None else _AuthenticatedSharedExchange
