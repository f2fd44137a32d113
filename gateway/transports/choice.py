"""Builds servers and clients of the transport implementation that the configuration names.

`native` is the gateway's own code; `reference` uses aiohttp and grpcio, which take 0.2 s to import.
So it is imported only where the configuration names it.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Final, Literal

from gateway.ir.errors import GatewayError
from gateway.transports import contract
from gateway.transports.authentication import Authentication
from gateway.transports.connection_count import ConnectionCount
from gateway.transports.contract import (
    ClientLimits,
    GrpcMount,
    Server,
    ServerLimits,
)
from gateway.transports.grpc.client import GrpcClient
from gateway.transports.grpc.server import GrpcServer
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.http.listener import HttpListener
from gateway.transports.http1.client import HttpClient
from gateway.transports.http1.server import HttpServer
from gateway.transports.memory_budget import UNLIMITED, MemoryBudget
from gateway.transports.net.resolver import UNIX
from gateway.transports.net.tls_files import TlsFiles

TransportImplementation = Literal["reference", "native"]

ALPN_GRPC: Final = ("h2",)
"""What gRPC servers and clients offer in a TLS handshake."""


def http_alpn(implementation: TransportImplementation) -> tuple[str, ...]:
    """Return what an HTTP server offers in a TLS handshake: aiohttp has no HTTP/2."""
    return ("h2", "http/1.1") if implementation == "native" else ("http/1.1",)


def http_server_class(implementation: TransportImplementation) -> type[HttpListener]:
    """Return the HTTP server of an implementation; both accept the same arguments."""
    if implementation == "native":
        return HttpServer
    from gateway.transports.reference import http_server  # noqa: PLC0415  # slow

    return http_server.HttpServer


def grpc_server(  # noqa: PLR0913  # all but the first two are keyword-only
    implementation: TransportImplementation,
    address: str,
    *,
    mounts: Sequence[GrpcMount],
    extras: Sequence[GrpcMount],
    limits: ServerLimits,
    budget: MemoryBudget,
    tls: TlsFiles | None,
    on_reject: Callable[[GatewayError], str | None],
    reuse_port: bool = False,
    count: ConnectionCount | None = None,
    authentication: Authentication | None = None,
    inherited: Sequence[socket.socket] = (),
) -> Server:
    """Return a gRPC server.

    Args:
        implementation: Native or reference.
        address: HOST:PORT to listen on.
        mounts: The frontends, by method.
        extras: Health and reflection.
        limits: Limits on connections, calls and messages.
        budget: The memory budget of requests.
        tls: The TLS files; None for plaintext.
        on_reject: Called for each call that reaches no frontend; never by the reference server.
        reuse_port: Share the port with other processes.
        count: Counts the connections; unused by the reference server.
        authentication: Asks who sends each call; None if nobody asks.
        inherited: Sockets that listen already; none for the reference server.
    """
    if implementation == "native":
        return GrpcServer(
            address,
            mounts,
            limits,
            budget,
            tls=None if tls is None else tls.context(*ALPN_GRPC),
            extras=extras,
            on_reject=on_reject,
            count=count,
            reuse_port=reuse_port,
            authentication=authentication,
            inherited=inherited,
        )
    from gateway.transports.reference import grpc_server  # noqa: PLC0415  # slow

    return grpc_server.GrpcServer(
        address,
        mounts,
        limits,
        budget,
        tls=tls,
        extras=extras,
        reuse_port=reuse_port,
        authentication=authentication,
        on_reject=on_reject,
    )


def grpc_client(
    implementation: TransportImplementation,
    target: str,
    limits: ClientLimits,
    *,
    tls: TlsFiles | None,
    withheld: WithheldCalls | None = None,
    budget: MemoryBudget = UNLIMITED,
    address: str = "",
) -> contract.GrpcClient:
    """Return a gRPC client.

    The native one connects to the IP address *address*, if it is not "", and withholds calls.
    """
    if implementation == "native":
        return GrpcClient(
            target,
            limits,
            tls=None if tls is None else tls.context(*ALPN_GRPC),
            withheld=withheld,
            budget=budget,
            address=address,
        )
    from gateway.transports.reference import grpc_client  # noqa: PLC0415  # slow

    return grpc_client.GrpcClient(target, limits, tls=tls)


def http_client(
    implementation: TransportImplementation,
    authority: str,
    limits: ClientLimits,
    *,
    tls: TlsFiles | None,
    budget: MemoryBudget = UNLIMITED,
    address: str = "",
) -> contract.HttpClient:
    """Return an HTTP client.

    Args:
        implementation: Native or reference.
        authority: HOST:PORT, with a path if the upstream has one; unix:/PATH for the native client.
        limits: Limits on connections and messages.
        tls: The TLS files; None for plaintext.
        budget: Counts the bytes of responses.
        address: IP address of the host, for the native client; "" to look it up.
    """
    context = None if tls is None else tls.context()
    scheme = "http://" if tls is None else "https://"
    url = authority if authority.startswith(UNIX) else f"{scheme}{authority}"
    if implementation == "native":
        return HttpClient(url, limits, tls=context, budget=budget, address=address)
    from gateway.transports.reference import http_client  # noqa: PLC0415

    return http_client.HttpClient(url, limits, tls=context, budget=budget)
