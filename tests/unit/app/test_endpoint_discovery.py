"""Endpoints follow the addresses of names, and lose no call."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from structlog.testing import capture_logs

from gateway.app.build.endpoint_discovery import BuiltEndpoint, EndpointDiscovery
from gateway.app.build.server_identity import ServerIdentity
from gateway.ir.calls import InferRequest, InferResponse, ServerReadyRequest
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import Unavailable, Unsupported
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.health_probe import Prober
from gateway.routing.balancing.load_balancing import BalancingPolicy, LoadBalancer
from gateway.settings.units import Url, parse_url
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.net.host_addresses import HostAddress, HostAddresses
from tests.fakes import FakeClock, settle

CALL = InferRequest(model=ModelRef("m"))
REPLY = InferResponse(model=ModelRef("m"), outputs=())


class Server:
    """Replies when the test permits it, and records whether its client was closed.

    Args:
        may_probe: Set when the server replies to probes.
    """

    def __init__(self, may_probe: asyncio.Event) -> None:
        self.may_probe = may_probe
        self.calls = 0
        self.is_closed = False
        self.may_reply = asyncio.Event()
        self.may_reply.set()
        self.is_ready = True

    async def __call__(self, call: object, /) -> object:
        if isinstance(call, ServerReadyRequest):
            await self.may_probe.wait()
            return self.is_ready
        if not isinstance(call, InferRequest):
            raise Unsupported("no such question")
        self.calls += 1
        await self.may_reply.wait()
        if self.is_closed:
            raise Unavailable("closed")
        return REPLY

    async def close(self) -> None:
        self.is_closed = True


class Names:
    """Names with their addresses, and an upstream that follows them."""

    def __init__(self, *urls: str, leave_s: float = 60.0) -> None:
        self.clock = FakeClock()
        self.records: dict[str, HostAddresses | OSError] = {}
        self.lookup = asyncio.Event()
        self.servers: dict[str, Server] = {}
        self.withheld: dict[str, list[WithheldCalls]] = defaultdict(list)
        self.may_probe = asyncio.Event()
        self.may_probe.set()
        self.removed: list[str] = []
        self.endpoints = Endpoints(
            "up",
            (),
            balancer=LoadBalancer(BalancingPolicy.ROUND_ROBIN),
            is_fixed=False,
            clock=self.clock,
        )
        self.discovery = EndpointDiscovery(
            "up",
            [parse_url(url) for url in urls or ("oip+grpc://triton:8001",)],
            self.endpoints,
            build=self._build,
            floor_s=5,
            cap_s=30,
            leave_s=leave_s,
            on_removed=self.removed.append,
            look_up=self._look_up,
            clock=self.clock,
            sleep=self._sleep,
        )

    def set(self, *addresses: str, host: str = "triton", ttl_s: float | None = 10.0) -> None:
        found = tuple(HostAddress(host, 8001, address) for address in addresses)
        self.records[host] = HostAddresses(found, ttl_s)

    async def resolve(
        self, *addresses: str, host: str = "triton", ttl_s: float | None = 10.0
    ) -> None:
        """Let a name have these addresses, and look it up."""
        self.set(*addresses, host=host, ttl_s=ttl_s)
        await self.discovery.update()

    def _build(self, url: Url, address: str) -> BuiltEndpoint:
        server = self.servers[address] = Server(self.may_probe)
        endpoint = Endpoint(f"{address}:{url.port}", server)  # type: ignore[arg-type]  # a double
        prober = Prober("up", endpoint, clock=self.clock, sleep=self._never)
        withheld = WithheldCalls(1.0, enabled=False)
        self.withheld[address].append(withheld)
        identity = ServerIdentity("up", endpoint.name, url, "auto", withheld)
        return BuiltEndpoint(
            endpoint, prober, identity, withheld, None, (server.close,), endpoint.service
        )

    async def _look_up(self, host: str, _port: int) -> HostAddresses:
        self.lookup.set()
        found = self.records.get(host, OSError("unknown name"))
        if isinstance(found, OSError):
            raise found
        return found

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    async def _never(self, _seconds: float) -> None:
        await asyncio.Event().wait()

    def names(self) -> list[str]:
        return [each.name.removesuffix(":8001") for each in self.endpoints.endpoints]


async def test_each_address_becomes_a_probed_endpoint() -> None:
    """Calls are balanced across all addresses."""
    names = Names()
    await names.resolve("10.0.0.1", "10.0.0.2")
    assert names.names() == ["10.0.0.1", "10.0.0.2"]
    assert names.endpoints.ready()
    for _ in range(4):
        await names.endpoints(CALL)
    assert [server.calls for server in names.servers.values()] == [2, 2]
    await names.discovery.close()


async def test_a_new_address_becomes_an_endpoint() -> None:
    """The existing endpoints are kept."""
    names = Names()
    await names.resolve("10.0.0.1")
    (first,) = names.endpoints.endpoints
    await names.resolve("10.0.0.1", "10.0.0.2")
    assert names.endpoints.endpoints[0] is first
    assert names.names() == ["10.0.0.1", "10.0.0.2"]
    await names.discovery.close()


async def test_a_removed_address_finishes_its_calls() -> None:
    """It receives no new calls, and is closed after the last one."""
    names = Names()
    await names.resolve("10.0.0.1")
    server = names.servers["10.0.0.1"]
    server.may_reply.clear()
    call = asyncio.create_task(names.endpoints(CALL))
    await settle()
    await names.resolve("10.0.0.2")
    await names.endpoints(CALL)
    await names.endpoints(CALL)
    assert (server.calls, names.servers["10.0.0.2"].calls) == (1, 2)
    assert not server.is_closed
    server.may_reply.set()
    assert await call == REPLY
    await settle()
    assert (server.is_closed, names.removed, names.names()) == (
        True,
        ["10.0.0.1:8001"],
        ["10.0.0.2"],
    )
    await names.discovery.close()


async def test_a_removed_address_finishes_its_sequences() -> None:
    """Later requests of its sequences still reach it, until the last one."""
    names = Names()
    await names.resolve("10.0.0.1")
    await names.endpoints(CALL.changed(sequence=CallSequence(7, start=True)))
    await names.resolve("10.0.0.2")
    await names.endpoints(CALL.changed(sequence=CallSequence(7)))
    await names.endpoints(CALL.changed(sequence=CallSequence(7, end=True)))
    assert names.servers["10.0.0.1"].calls == 3
    assert names.removed == []
    await settle()
    assert names.removed == ["10.0.0.1:8001"]
    await names.discovery.close()


async def test_a_removed_address_is_closed_after_a_timeout() -> None:
    """Calls still pending after `leave_s` do not keep it open."""
    names = Names(leave_s=3.0)
    await names.resolve("10.0.0.1")
    names.servers["10.0.0.1"].may_reply.clear()
    call = asyncio.create_task(names.endpoints(CALL))
    await settle()
    await names.resolve("10.0.0.2")
    for _ in range(40):
        await settle()
    assert names.servers["10.0.0.1"].is_closed
    call.cancel()
    await names.discovery.close()


async def test_an_address_that_returns_in_time_is_kept() -> None:
    """Its calls continue, and it receives new ones."""
    names = Names()
    await names.resolve("10.0.0.1")
    server = names.servers["10.0.0.1"]
    server.may_reply.clear()
    call = asyncio.create_task(names.endpoints(CALL))
    await settle()
    await names.resolve("10.0.0.2")
    await names.resolve("10.0.0.1")
    server.may_reply.set()
    await call
    await settle()
    assert await names.endpoints(CALL) == REPLY
    assert (names.names(), server.calls, server.is_closed) == (["10.0.0.1"], 2, False)
    await names.discovery.close()


async def test_a_returning_address_was_closed_during_another_probe() -> None:
    """Both receive calls, although the last call of the first ended before the other probe."""
    names = Names()
    await names.resolve("10.0.0.1")
    leaving = names.servers["10.0.0.1"]
    leaving.may_reply.clear()
    call = asyncio.create_task(names.endpoints(CALL))
    await settle()
    await names.resolve("10.0.0.2")
    names.set("10.0.0.1", "10.0.0.3")
    names.may_probe.clear()
    update = asyncio.create_task(names.discovery.update())
    await settle()
    leaving.may_reply.set()
    await call
    await settle()
    assert leaving.is_closed
    names.may_probe.set()
    await update
    await settle()
    assert sorted(names.names()) == ["10.0.0.1", "10.0.0.3"]
    await names.discovery.close()


async def test_metrics_of_a_returning_address_were_removed() -> None:
    """Withheld calls of the old endpoint end after a new endpoint has its name."""
    names = Names()
    await names.resolve("10.0.0.1")
    names.discovery.members[0].withheld.begin()
    await names.resolve("10.0.0.2")
    await settle()
    left = names.servers["10.0.0.1"]
    await names.resolve("10.0.0.1", "10.0.0.2")
    names.withheld["10.0.0.1"][0].end()
    await settle()
    assert (left.is_closed, names.removed) == (True, [])
    await names.discovery.close()


async def test_endpoint_of_a_cancelled_update_was_never_closed() -> None:
    """A reload may cancel an update while a new address is probed."""
    names = Names()
    names.set("10.0.0.1")
    names.may_probe.clear()
    update = asyncio.create_task(names.discovery.update())
    await settle()
    update.cancel()
    await settle()
    assert names.servers["10.0.0.1"].is_closed
    await names.discovery.close()


async def test_a_failed_lookup_keeps_the_addresses() -> None:
    """The failure is logged once, as is the recovery."""
    names = Names()
    await names.resolve("10.0.0.1")
    names.records["triton"] = OSError("no answer")
    with capture_logs() as lines:
        await names.discovery.update()
        await names.discovery.update()
        assert names.names() == ["10.0.0.1"]
        await names.resolve("10.0.0.1")
    assert [line["event"] for line in lines] == ["name not resolved", "name resolved again"]
    await names.discovery.close()


async def test_an_upstream_without_addresses_is_unavailable() -> None:
    """The error reports the unknown name; the gateway starts anyway."""
    names = Names()
    await names.discovery.update()
    assert not names.endpoints.ready()
    with pytest.raises(
        Unavailable, match="upstream 'up' has no address: its name could not be looked up"
    ):
        await names.endpoints(CALL)


async def test_an_address_of_two_names_is_one_endpoint() -> None:
    """Two endpoints would count its load twice."""
    names = Names("oip+grpc://a:8001", "oip+grpc://b:8001")
    names.set("10.0.0.1", "10.0.0.2", host="a")
    await names.resolve("10.0.0.2", "10.0.0.3", host="b")
    assert names.names() == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    await names.discovery.close()


async def test_ranks_and_weights_follow_the_records() -> None:
    """Connections are kept; of two records for a server, the first rank counts."""
    names = Names()

    def set_records(*ranks_and_weights: tuple[int, float]) -> None:
        found = [
            HostAddress("triton", 8001, f"10.0.0.{number}", rank, weight)
            for number, (rank, weight) in enumerate(ranks_and_weights, 1)
        ]
        found.append(HostAddress("other", 8001, "10.0.0.1", 5))
        names.records["triton"] = HostAddresses((found[-1], *found[:-1]), 10.0)

    def shares() -> list[tuple[int, float]]:
        return [(each.rank, each.weight) for each in names.endpoints.endpoints]

    set_records((0, 1.0), (1, 1.0))
    await names.discovery.update()
    assert shares() == [(0, 1.0), (1, 1.0)]
    for _ in range(4):
        await names.endpoints(CALL)
    assert (4, 0) == (names.servers["10.0.0.1"].calls, names.servers["10.0.0.2"].calls)
    before = names.endpoints.endpoints
    with capture_logs() as lines:
        set_records((0, 1.5), (0, 0.5))
        await names.discovery.update()
        await names.discovery.update()
    assert [line["event"] for line in lines] == ["endpoint weights changed"]
    assert shares() == [(0, 1.5), (0, 0.5)]
    assert before == names.endpoints.endpoints
    for _ in range(8):
        await names.endpoints(CALL)
    assert (10, 2) == (names.servers["10.0.0.1"].calls, names.servers["10.0.0.2"].calls)
    await names.discovery.close()


async def until_next_lookup(names: Names) -> float:
    """Follow the names until the next look-up; return the seconds that it took."""
    began = names.clock.now
    names.lookup.clear()
    names.discovery.start()
    await names.lookup.wait()
    elapsed = names.clock.now - began
    await names.discovery.close()
    return elapsed


@pytest.mark.parametrize(
    ("ttl_s", "expected_s"), [(1.0, 5.0), (12.0, 15.0), (3600.0, 30.0), (None, 5.0)]
)
async def test_name_is_looked_up_again_after_its_time_to_live(
    ttl_s: float | None, expected_s: float
) -> None:
    """The interval is between `resolve_floor` and `resolve_cap`, in steps of the former."""
    names = Names()
    await names.resolve("10.0.0.1", ttl_s=ttl_s)
    assert await until_next_lookup(names) == expected_s


async def test_an_unready_endpoint_shortens_the_lookup_interval() -> None:
    """A moved server is found before the time to live has passed."""
    names = Names()
    await names.resolve("10.0.0.1", "10.0.0.2", ttl_s=3600.0)
    names.servers["10.0.0.2"].is_ready = False
    await names.discovery.members[1].prober.probe()
    assert await until_next_lookup(names) == 5.0


async def test_draining_all_endpoints_includes_later_addresses() -> None:
    """An operator's "*" means all endpoints, also future ones."""
    names = Names()
    await names.resolve("10.0.0.1")
    names.endpoints.drain({"*"})
    await names.resolve("10.0.0.1", "10.0.0.2")
    with pytest.raises(Unavailable, match="all endpoints of upstream 'up' are drained"):
        await names.endpoints(CALL)
    names.endpoints.drain({"10.0.0.1:8001"})
    await names.endpoints(CALL)
    assert names.servers["10.0.0.2"].calls == 1
    await names.discovery.close()
