"""Addresses of a name: hosts and services in the DNS, and names of the system's resolver."""

from __future__ import annotations

import math
import socket

import pytest

from gateway.transports.net import host_addresses
from gateway.transports.net.host_addresses import HostAddress, look_up_all
from tests.name_server import name_server


async def test_host_has_all_its_addresses_and_their_time_to_live() -> None:
    """A and AAAA records are found, in order."""
    async with name_server() as server:
        server.records["triton.", "A"] = ["127.0.0.3", "127.0.0.2"]
        server.records["triton.", "AAAA"] = ["::1"]
        server.ttl_s = 7
        found = await look_up_all("triton", 8001, server.resolver())
    assert found.ttl_s == 7
    assert [each.address for each in found.found] == ["127.0.0.2", "127.0.0.3", "::1"]
    assert {(each.host, each.port) for each in found.found} == {("triton", 8001)}


async def test_service_has_hosts_ports_priorities_and_weights() -> None:
    """A host shares the weight of its record among its addresses; the port of the URL is unused."""
    async with name_server() as server:
        server.records["_grpc._tcp.triton.", "SRV"] = [
            "10 60 9001 a.triton.",
            "10 30 9002 b.triton.",
            "20 0 9003 a.triton.",
        ]
        server.records["a.triton.", "A"] = ["127.0.0.2"]
        server.records["b.triton.", "A"] = ["127.0.0.3", "127.0.0.4"]
        found = await look_up_all("_grpc._tcp.triton", 8001, server.resolver())
    assert found.found == (
        HostAddress("a.triton", 9001, "127.0.0.2", 0, 2.0),
        HostAddress("a.triton", 9003, "127.0.0.2", 1, 1.0),
        HostAddress("b.triton", 9002, "127.0.0.3", 0, 0.5),
        HostAddress("b.triton", 9002, "127.0.0.4", 0, 0.5),
    )
    assert found.ttl_s == 30


async def test_unknown_hosts_of_a_service_are_skipped() -> None:
    """If all hosts are unknown, the lookup fails."""
    async with name_server() as server:
        server.records["_grpc._tcp.triton.", "SRV"] = ["1 1 9001 a.triton.", "1 1 9002 b.triton."]
        with pytest.raises(OSError, match="does not exist"):
            await look_up_all("_grpc._tcp.triton", 1, server.resolver())
        server.records["b.triton.", "A"] = ["127.0.0.3"]
        found = await look_up_all("_grpc._tcp.triton", 1, server.resolver())
    assert found.found == (HostAddress("b.triton", 9002, "127.0.0.3"),)


async def test_a_record_of_weight_zero_has_a_small_weight() -> None:
    """A weight of 0 does not exclude a server from all calls."""
    async with name_server() as server:
        server.records["_grpc._tcp.triton.", "SRV"] = ["1 0 9001 a.triton.", "1 9 9002 a.triton."]
        server.records["a.triton.", "A"] = ["127.0.0.2"]
        found = await look_up_all("_grpc._tcp.triton", 1, server.resolver())
    small, large = (each.weight for each in found.found)
    assert 0 < small < 0.02 * large


async def test_a_service_record_of_a_dot_has_no_addresses() -> None:
    """The target "." means that the service is not offered."""
    async with name_server() as server:
        server.records["_grpc._tcp.triton.", "SRV"] = ["0 0 0 ."]
        assert (await look_up_all("_grpc._tcp.triton", 1, server.resolver())).found == ()


async def test_unknown_service_is_an_error() -> None:
    """The system's resolver has no service records to fall back to."""
    async with name_server() as server:
        with pytest.raises(OSError, match=r"service _grpc._tcp.x is unknown: .*does not exist"):
            await look_up_all("_grpc._tcp.x", 1, server.resolver())


async def test_a_name_unknown_to_the_dns_is_resolved_by_the_system() -> None:
    """The file /etc/hosts has names, too; they have no time to live."""
    async with name_server() as server:
        found = await look_up_all("localhost", 8001, server.resolver())
        assert server.query_count
    assert found.ttl_s is None
    assert "127.0.0.1" in [each.address for each in found.found]


async def test_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookup fails if neither the DNS nor the system has the name."""

    async def look_up(_host: str) -> list[str]:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(host_addresses, "look_up", look_up)
    async with name_server() as server:
        with pytest.raises(OSError, match="unknown"):
            await look_up_all("nobody", 8001, server.resolver())


async def test_without_the_dns_package_the_system_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names resolve to addresses without a time to live."""
    monkeypatch.setattr(host_addresses, "HAS_DNS", False)
    found = await look_up_all("localhost", 8001)
    assert found.ttl_s is None
    assert HostAddress("localhost", 8001, "127.0.0.1") in found.found


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
async def test_an_ip_address_needs_no_lookup(address: str) -> None:
    """It never expires."""
    found = await look_up_all(address, 8001)
    assert found == ((HostAddress(address, 8001, address),), math.inf)
