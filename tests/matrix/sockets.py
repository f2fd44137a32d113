"""Clients and servers of either make, joined over the loopback as `gateway/app` makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.transports.choice import (
    TransportImplementation,
    grpc_client,
    grpc_server,
    http_client,
    http_server_class,
)
from gateway.transports.contract import ClientLimits, GrpcMount, HttpMount, Server, ServerLimits
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.stream.client import StreamClient
from gateway.transports.stream.server import StreamServer
from tests.properties.registered import Registered

_LIMITS = ServerLimits()
_BUDGET_BYTES = 1 << 29
_FREE = "127.0.0.1:0"


@asynccontextmanager
async def over_sockets(
    make: TransportImplementation, there: Registered, frontend: Any
) -> AsyncIterator[Any]:
    """Serve *frontend* by transports of *make*, and yield a client of the same make."""
    server = _server(make, there, frontend)
    await server.start()
    try:
        client = _client(make, there, server.address)
        try:
            yield client
        finally:
            await client.close()
    finally:
        await server.stop()


def _server(make: TransportImplementation, there: Registered, frontend: Any) -> Server:
    budget = MemoryBudget(_BUDGET_BYTES)
    if there.carrier == "http":
        return http_server_class(make)(
            host="127.0.0.1",
            port=0,
            mounts=[HttpMount(("",), frontend)],
            limits=_LIMITS,
            budget=budget,
            on_reject=_unexpected,
        )
    if there.carrier == "grpc":
        return grpc_server(
            make,
            _FREE,
            mounts=[GrpcMount(there.binding.methods, frontend)],
            extras=(),
            limits=_LIMITS,
            budget=budget,
            tls=None,
            on_reject=_unexpected,
        )
    framer = partial(there.binding.server_framer, DEFAULT_LIMITS)
    ordered = there.binding.is_ordered
    return StreamServer(_FREE, framer, frontend, limits=_LIMITS, budget=budget, ordered=ordered)


def _client(make: TransportImplementation, there: Registered, address: str) -> Any:
    if there.carrier == "http":
        return http_client(make, address, ClientLimits(), tls=None)
    if there.carrier == "grpc":
        return grpc_client(make, address, ClientLimits(), tls=None)
    framer = partial(there.binding.client_framer, DEFAULT_LIMITS)
    return StreamClient(address, framer, ClientLimits(), ordered=there.binding.is_ordered)


def _unexpected(error: GatewayError) -> None:
    raise AssertionError(error.message)
