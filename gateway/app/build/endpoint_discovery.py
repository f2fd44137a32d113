"""Endpoints that follow the addresses of names (`resolve: all`).

Each address behind a name is an endpoint. An address that is new is probed before it gets calls.
One that is gone gets no new calls, and is closed when its calls and sequences have ended. Records
of services (SRV) also tell the ranks and weights of the endpoints.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

import structlog

from gateway.app.build.server_identity import ServerIdentity
from gateway.concurrency.background import end_tasks, start_background
from gateway.policies.hand_over.policy import HandOver
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.balancing.health_probe import Prober
from gateway.service import Service
from gateway.settings.units import Url
from gateway.transports.contract import HttpClient
from gateway.transports.grpc.withheld import WithheldCalls
from gateway.transports.net.host_addresses import HostAddress, HostAddresses, LookUp

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.1
_LEAST_PAUSE_S: Final = 0.1
_LOOK_UP_S: Final = 6.0

_Key = tuple[Url, str]


@dataclass(frozen=True, slots=True)
class BuiltEndpoint:
    """An endpoint with all that belongs to it.

    Attributes:
        withheld: Cancelled calls that still run there.
        http: Its HTTP client; None if it has none.
        closes: Close its clients.
        questions: Sends questions over connections that inferences do not use.
        hand_over: Hands large tensors over in shared memory; None if its server is elsewhere.
    """

    endpoint: Endpoint
    prober: Prober
    identity: ServerIdentity
    withheld: WithheldCalls
    http: HttpClient | None
    closes: tuple[Callable[[], Awaitable[None]], ...]
    questions: Service
    hand_over: HandOver | None = None

    async def drain(self) -> None:
        """Stop probing, and wait for cancelled calls that still run."""
        await self.prober.close()
        await self.withheld.drained()

    async def close(self) -> None:
        """Stop probing and close every connection."""
        await self.prober.close()
        for close in self.closes:
            await close()


class EndpointDiscovery:
    """Keeps the endpoints of an upstream equal to the addresses of its names.

    A name is looked up again when its time to live has passed, and earlier while an endpoint is not
    ready. A name that cannot be looked up keeps its addresses.

    Args:
        upstream: Its name.
        urls: Its names.
        endpoints: Where the endpoints are put.
        build: Builds the endpoint of a URL and an IP address.
        floor_s: Shortest time between two look-ups; the time to live of one that tells none.
        cap_s: Longest time between two look-ups.
        leave_s: Longest time for the calls of an address that is gone.
        on_removed: Called with the name of each endpoint that is closed.
        look_up: Looks up a name.
        clock: Monotonic seconds.
        sleep: Waits.

    Attributes:
        is_asking: Names are looked up at this moment.
        leave_s: As the argument; it holds from the next address that is gone.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first three
        self,
        upstream: str,
        urls: Sequence[Url],
        endpoints: Endpoints,
        *,
        build: Callable[[Url, str], BuiltEndpoint],
        floor_s: float,
        cap_s: float,
        leave_s: float,
        on_removed: Callable[[str], None],
        look_up: LookUp,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._upstream = upstream
        self._endpoints = endpoints
        self._build = build
        self._floor_s = max(_LEAST_PAUSE_S, floor_s)
        self._cap_s = cap_s
        self.leave_s = leave_s
        self._on_removed = on_removed
        self._look_up = look_up
        self._clock = clock
        self._sleep = sleep
        self._found: dict[Url, HostAddresses] = {url: HostAddresses((), None) for url in urls}
        self._failed: set[Url] = set()
        self._due = clock()
        self._has_followed = False
        self.is_asking = False
        self._members: dict[_Key, BuiltEndpoint] = {}
        self._leaving: dict[_Key, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def members(self) -> list[BuiltEndpoint]:
        """The endpoints, with those that are leaving."""
        return list(self._members.values())

    async def update(self) -> None:
        """Look up every name, and follow what has changed."""
        self.is_asking = True
        try:
            await asyncio.gather(*map(self._ask, self._found))
        finally:
            self.is_asking = False
        ttls_s = [each.ttl_s or self._floor_s for each in self._found.values()]
        self._due = self._clock() + min(max(min(ttls_s), self._floor_s), self._cap_s)
        await self._follow()
        self._has_followed = True

    def start(self) -> None:
        """Begin to follow the names."""
        self._keep(self._run())

    async def close(self) -> None:
        """Follow the names no longer; idempotent."""
        await end_tasks(*self._tasks)

    async def _run(self) -> None:
        pause_s = self._floor_s if self._has_followed else 0.0
        while True:
            await self._sleep(pause_s)
            pause_s = self._floor_s
            is_missing = not all(member.endpoint.is_ready for member in self.members)
            if self._clock() >= self._due or is_missing:
                try:
                    await self.update()
                except Exception:  # a defect, or a TLS file that has gone: the endpoints stay
                    log.exception("names not followed", upstream=self._upstream)

    async def _ask(self, url: Url) -> None:
        names = {"upstream": self._upstream, "name": url.host}
        try:
            async with asyncio.timeout(_LOOK_UP_S):
                found = await self._look_up(url.host, url.port)
        except (OSError, TimeoutError) as error:
            self._found[url] = self._found[url]._replace(ttl_s=None)
            if url not in self._failed:
                self._failed.add(url)
                reason = str(error) or f"no response within {_LOOK_UP_S} s"
                log.warning("name not resolved", reason=reason, **names)
            return
        self._found[url] = found
        if url in self._failed:
            self._failed.remove(url)
            log.info("name resolved again", **names)

    async def _follow(self) -> None:
        wanted = self._wanted()
        added: list[_Key] = []
        # An address that comes back may be closed while others are probed: then it is new, too.
        while new := [key for key in wanted if key not in self._members]:
            await self._add(new)
            added += new
        gone = [key for key in self._members if key not in wanted and key not in self._leaving]
        back = [key for key in self._leaving if key in wanted]
        has_other_shares = self._set_shares(wanted)
        if not (added or gone or back):
            if has_other_shares:
                self._replace()
                log.info("endpoint weights changed", upstream=self._upstream)
            return
        for key in back:
            self._leaving.pop(key).cancel()
            self._members[key].endpoint.is_leaving = False
        for key in gone:
            self._members[key].endpoint.is_leaving = True
            self._leaving[key] = self._keep(self._retire(key, self._members[key]))
        self._replace()
        log.info(
            "endpoints changed",
            upstream=self._upstream,
            added=[self._members[key].endpoint.name for key in (*added, *back)],
            removed=[self._members[key].endpoint.name for key in gone],
        )

    async def _add(self, keys: Sequence[_Key]) -> None:
        """Build and probe the endpoints *keys*; close them if that fails or is cancelled."""
        built: dict[_Key, BuiltEndpoint] = {}
        try:
            for key in keys:
                built[key] = self._build(*key)
                built[key].withheld.longest_s = self.leave_s
            await asyncio.gather(*(member.prober.probe() for member in built.values()))
        except BaseException:
            await asyncio.gather(*(member.close() for member in built.values()))
            raise
        for member in built.values():
            member.prober.start()
        self._members |= built

    def _wanted(self) -> dict[_Key, HostAddress]:
        """Return the servers behind all names, those with the same address once: the first."""
        found: dict[tuple[str, int], tuple[_Key, HostAddress]] = {}
        for url, addresses in self._found.items():
            for each in addresses.found:
                key = (replace(url, host=each.host, port=each.port), each.address)
                server = (each.address, each.port)
                if server not in found or each.rank < found[server][1].rank:
                    found[server] = (key, each)
        return dict(found.values())

    def _set_shares(self, wanted: Mapping[_Key, HostAddress]) -> bool:
        """Give the endpoints their ranks and weights; return whether one has changed."""
        has_changed = False
        for key, found in wanted.items():
            endpoint = self._members[key].endpoint
            has_changed |= (endpoint.rank, endpoint.weight) != (found.rank, found.weight)
            endpoint.rank, endpoint.weight = found.rank, found.weight
        return has_changed

    def _replace(self) -> None:
        self._endpoints.replace([member.endpoint for member in self.members])

    async def _retire(self, key: _Key, member: BuiltEndpoint) -> None:
        """Close an endpoint that is leaving, after its calls; cancelled if it comes back."""
        deadline = self._clock() + self.leave_s
        while self._clock() < deadline and self._endpoints.is_used(member.endpoint):
            await self._sleep(_POLL_S)
        del self._members[key], self._leaving[key]
        self._replace()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    await member.drain()
        finally:
            await member.close()
            name = member.endpoint.name
            if all(each.endpoint.name != name for each in self.members):  # it has not come back
                self._on_removed(name)

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return start_background(work, f"endpoints of {self._upstream}", self._tasks)
