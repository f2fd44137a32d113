"""All addresses of a name: hosts and services in the DNS, and names that only the system knows."""

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


async def test_service_has_the_hosts_and_ports_of_its_first_priority() -> None:
    """Records of a later priority do not count, and neither does the port of the URL."""
    async with name_server() as server:
        server.records["_grpc._tcp.triton.", "SRV"] = [
            "10 1 9001 a.triton.",
            "10 1 9002 b.triton.",
            "20 1 9003 c.triton.",
        ]
        server.records["a.triton.", "A"] = ["127.0.0.2"]
        server.records["b.triton.", "A"] = ["127.0.0.3"]
        found = await look_up_all("_grpc._tcp.triton", 8001, server.resolver())
    assert found.found == (
        HostAddress("a.triton", 9001, "127.0.0.2"),
        HostAddress("b.triton", 9002, "127.0.0.3"),
    )
    assert found.ttl_s == 30


async def test_service_may_say_that_nobody_offers_it() -> None:
    """The target "." is no host."""
    async with name_server() as server:
        server.records["_grpc._tcp.triton.", "SRV"] = ["0 0 0 ."]
        assert (await look_up_all("_grpc._tcp.triton", 1, server.resolver())).found == ()


async def test_unknown_service_is_an_error() -> None:
    """The system has no records of services."""
    async with name_server() as server:
        with pytest.raises(OSError, match=r"service _grpc._tcp.x is unknown: .*does not exist"):
            await look_up_all("_grpc._tcp.x", 1, server.resolver())


async def test_name_that_the_dns_does_not_know_is_asked_of_the_system() -> None:
    """The file /etc/hosts has names, too; nobody tells their time to live."""
    async with name_server() as server:
        found = await look_up_all("localhost", 8001, server.resolver())
        assert server.asked
    assert found.ttl_s is None
    assert "127.0.0.1" in [each.address for each in found.found]


async def test_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the DNS nor the system knows it."""

    async def look_up(_host: str, _port: int) -> list[str]:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(host_addresses, "look_up", look_up)
    async with name_server() as server:
        with pytest.raises(OSError, match="unknown"):
            await look_up_all("nobody", 8001, server.resolver())


async def test_without_the_package_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names have their addresses, without a time to live."""
    monkeypatch.setattr(host_addresses, "HAS_DNS", False)
    found = await look_up_all("localhost", 8001)
    assert found.ttl_s is None
    assert HostAddress("localhost", 8001, "127.0.0.1") in found.found


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
async def test_address_stands_for_itself_for_ever(address: str) -> None:
    """Nobody is asked."""
    found = await look_up_all(address, 8001)
    assert found == ((HostAddress(address, 8001, address),), math.inf)
