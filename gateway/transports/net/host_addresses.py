"""All addresses of a name, and how long they are valid.

With dnspython (the extra `dns`) the gateway asks the DNS itself, which tells the time to live and
the records of services (SRV). Without it, or where the DNS does not know a name, the system looks
the name up.
"""

import ipaddress
import math
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from gateway.transports.net.look_up import is_address, look_up

HAS_DNS: Final = find_spec("dns") is not None
"""Whether dnspython is installed."""


# The system is asked next, which takes its own time.
_LIFETIME_S: Final = 2.0
# Of a record with the weight 0, which is to get very few calls beside others.
_LEAST_WEIGHT: Final = 0.1


class HostAddress(NamedTuple):
    """One server behind a name.

    Attributes:
        host: Its name, for TLS and for headers.
        port: Its port.
        address: Its IP address.
        rank: It gets calls only while no server of a lower rank is available; 0 is the first.
        weight: Its share of the calls, relative to those of the same rank; above 0.
    """

    host: str
    port: int
    address: str
    rank: int = 0
    weight: float = 1.0


class HostAddresses(NamedTuple):
    """The servers behind a name.

    Attributes:
        found: The servers, in order of their addresses.
        ttl_s: How long they are valid, in seconds; None if that is unknown.
    """

    found: tuple[HostAddress, ...]
    ttl_s: float | None


LookUp = Callable[[str, int], Awaitable[HostAddresses]]
"""Looks up a name, and a port that records of services replace. Raises OSError."""


def is_service(host: str) -> bool:
    """Return whether *host* names a service, as in `_grpc._tcp.triton`, and not a host."""
    return host.startswith("_")


async def look_up_all(host: str, port: int, resolver: Any = None) -> HostAddresses:
    """Return all servers behind a name.

    Records of a service have a priority, which becomes the rank of a server, and a weight.

    Args:
        host: A name of a host or of a service, or an address.
        port: The port of hosts.
        resolver: An asynchronous resolver of dnspython; None for that of the system.

    Raises:
        OSError: The name is unknown, or no server replied.

    Source: RFC 2782.
    """
    if is_address(host):
        return HostAddresses((HostAddress(host, port, host),), math.inf)
    if not HAS_DNS:
        return await _ask_system(host, port)
    return await _ask_dns(host, port, resolver)


async def _ask_system(host: str, port: int) -> HostAddresses:
    addresses = await look_up(host)
    return HostAddresses(_ordered(HostAddress(host, port, each) for each in addresses), None)


async def _ask_dns(host: str, port: int, resolver: Any) -> HostAddresses:
    import dns.asyncresolver  # noqa: PLC0415  # an extra
    import dns.exception  # noqa: PLC0415

    try:
        if resolver is None:
            resolver = dns.asyncresolver.Resolver()
            resolver.lifetime = _LIFETIME_S
        if is_service(host):
            return await _ask_service(host, resolver)
        return await _ask_host(host, port, resolver)
    except dns.exception.DNSException as error:
        if is_service(host):
            raise OSError(f"service {host} is unknown: {error}") from error
        return await _ask_system(host, port)  # which also knows /etc/hosts


async def _ask_host(host: str, port: int, resolver: Any) -> HostAddresses:
    answers = await resolver.resolve_name(host)
    ttl_s = min(_ttl_s(answer) for answer in answers.values() if answer.rrset)
    found = _ordered(HostAddress(host, port, each) for each in answers.addresses())
    return HostAddresses(found, ttl_s)


async def _ask_service(host: str, resolver: Any) -> HostAddresses:
    import dns.resolver  # noqa: PLC0415  # an extra

    answer = await resolver.resolve(host, "SRV", search=True)
    ttl_s = _ttl_s(answer)
    found: list[HostAddress] = []
    unknown: dns.exception.DNSException | None = None
    for record in answer:
        target = record.target.to_text(omit_final_dot=True)
        if target == ".":  # which means: no such service
            continue
        try:
            hosts = await _ask_host(target, record.port, resolver)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
            unknown = error  # a record that is out of date must not cost the others
            continue
        weight = max(record.weight, _LEAST_WEIGHT) / len(hosts.found)
        found += [each._replace(rank=record.priority, weight=weight) for each in hosts.found]
        ttl_s = min(ttl_s, hosts.ttl_s or ttl_s)
    if unknown is not None and not found:
        raise unknown
    return HostAddresses(_ordered(_ranked(found)), ttl_s)


def _ranked(found: list[HostAddress]) -> Iterator[HostAddress]:
    """Turn priorities into ranks from 0 on, and make the mean of the weights of each rank 1."""
    for rank, priority in enumerate(sorted({each.rank for each in found})):
        servers = [each for each in found if each.rank == priority]
        mean = sum(each.weight for each in servers) / len(servers)
        for each in servers:
            yield each._replace(rank=rank, weight=each.weight / mean)


def _ttl_s(answer: Any) -> float:
    """Return the shortest time to live of an answer and its aliases."""
    return float(answer.chaining_result.minimum_ttl)


def _ordered(found: Any) -> tuple[HostAddress, ...]:
    return tuple(
        sorted(set(found), key=lambda each: (*_address_key(each.address), each.port, each.host))
    )


def _address_key(address: str) -> tuple[int, int]:
    parsed = ipaddress.ip_address(address)
    return parsed.version, int(parsed)
