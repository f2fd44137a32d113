"""Which make of a transport carries what: the reference make's libraries, or our own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from gateway.ir.errors import GatewayError
from gateway.transports.admission import MemoryBudget
from gateway.transports.contract import (
    ClientLimits,
    GrpcClient,
    GrpcMount,
    HttpClient,
    Server,
    ServerLimits,
)
from gateway.transports.grpc import client as native_client
from gateway.transports.grpc import server as native_server
from gateway.transports.http.listener import HttpListener
from gateway.transports.http1 import client as native_http_client
from gateway.transports.http1 import server as native_http_server
from gateway.transports.net.tls import (
    ClientTls,
    ServerTls,
    client_context,
    grpc_channel_credentials,
    grpc_server_credentials,
    server_context,
)
from gateway.transports.reference import grpc_client as reference_client
from gateway.transports.reference import grpc_server as reference_server
from gateway.transports.reference import http_client as reference_http_client
from gateway.transports.reference import http_server as reference_http_server

TransportImplementation = Literal["reference", "native"]

HTTP_SERVERS: Final[Mapping[TransportImplementation, type[HttpListener]]] = {
    "native": native_http_server.HttpServer,
    "reference": reference_http_server.HttpServer,
}
"""The HTTP server of each make; both take the same arguments."""


def grpc_server(  # noqa: PLR0913  # all by name but the first two
    make: TransportImplementation,
    address: str,
    *,
    mounts: Sequence[GrpcMount],
    extras: Sequence[GrpcMount],
    limits: ServerLimits,
    budget: MemoryBudget,
    tls: ServerTls | None,
    refused: Callable[[GatewayError], None],
    reuse_port: bool = False,
) -> Server:
    """Return a gRPC server of *make*; *refused* is told of calls that reach no frontend.

    The reference make cannot tell of those.

    Raises:
        OSError: A TLS file cannot be read.
        ValueError: A TLS file is not what it should be.
    """
    if make == "native":
        context = None if tls is None else server_context(tls)
        return native_server.GrpcServer(
            address,
            mounts,
            limits,
            budget,
            ssl_context=context,
            extras=extras,
            refused=refused,
            reuse_port=reuse_port,
        )
    credentials = None if tls is None else grpc_server_credentials(tls)
    return reference_server.GrpcServer(
        address,
        mounts,
        limits,
        budget,
        credentials=credentials,
        extras=extras,
        reuse_port=reuse_port,
    )


def grpc_client(
    make: TransportImplementation, target: str, limits: ClientLimits, *, tls: ClientTls | None
) -> GrpcClient:
    """Return a gRPC client of *make*. Raises as `grpc_server`."""
    if make == "native":
        context = None if tls is None else client_context(tls)
        return native_client.GrpcClient(target, limits, ssl_context=context)
    credentials = None if tls is None else grpc_channel_credentials(tls)
    return reference_client.GrpcClient(target, limits, credentials=credentials)


def http_client(
    make: TransportImplementation, url: str, limits: ClientLimits, *, tls: ClientTls | None
) -> HttpClient:
    """Return an HTTP client of *make*; *url* is without its scheme. Raises as `grpc_server`."""
    context = None if tls is None else client_context(tls)
    whole = f"{'http' if tls is None else 'https'}://{url}"
    if make == "native":
        return native_http_client.HttpClient(whole, limits, ssl_context=context)
    return reference_http_client.HttpClient(whole, limits, ssl_context=context)
