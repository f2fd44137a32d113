"""Names of servers, such as `main.http`, with the addresses and inherited sockets of each."""

import itertools
import socket
from collections.abc import Mapping

from gateway.config.models import ListenerConfig, StreamConfig
from gateway.registry import protocol
from gateway.settings.units import UNIX, Address, StreamAddress


def server_addresses(config: ListenerConfig) -> dict[str, Address | StreamAddress]:
    """Return the address of each server of a listener, by the name of the server."""
    found: dict[str, Address | StreamAddress] = {}
    if config.address is not None:
        found[f"{config.name}.http+grpc"] = config.address
    if config.http is not None:
        found[f"{config.name}.http"] = config.http
    if config.grpc is not None:
        found[f"{config.name}.grpc"] = config.grpc
    for stream in config.streams:
        found[stream_server_name(config, stream, found)] = stream.address
    return found


def inherited_sockets(
    server: str, sockets: Mapping[str, socket.socket]
) -> tuple[socket.socket, ...]:
    """Return the sockets of a service manager for one server; none if it binds its address."""
    return tuple(sock for key, sock in sockets.items() if key.partition("#")[0] == server)


def stream_server_name(
    config: ListenerConfig, stream: StreamConfig, used: Mapping[str, object]
) -> str:
    """Return the name of the server of a stream, which is none of those in use."""
    return _unique_name(f"{config.name}.{stream.protocol}.{_carrier(stream)}", used)


def _carrier(stream: StreamConfig) -> str:
    """Return the carrier of a stream, by its name in URLs."""
    if stream.address.tcp is None:
        return UNIX
    binding = protocol(stream.protocol).stream
    carriers = () if binding is None else binding.carriers
    return next((carrier for carrier in carriers if carrier != UNIX), "tcp")


def _unique_name(name: str, used: Mapping[str, object]) -> str:
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in used)
