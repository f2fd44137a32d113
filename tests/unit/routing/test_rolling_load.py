"""Rolling loads: one endpoint after the other, and the first failure stops them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from gateway.api.layer import Entries
from gateway.ir.calls import Call, InferRequest, InferResponse, ModelLoadRequest, StreamInferRequest
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import GatewayError, LoadFailed, Unavailable, UpstreamError
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.rolling.layer import RollingLoad, TrialOf
from gateway.routing.rolling.model_calls import CountModelCalls
from gateway.routing.rolling.settings import RollingLoadConfig, TrialResult, WarmUpConfig
from gateway.service import Service
from gateway.telemetry.usage.model_calls import ModelCalls
from tests.simulation.virtual_time import elapse, now, simulate

M = ModelRef("m")
LOAD = ModelLoadRequest(model=M)


@dataclass
class Server:
    """A server whose loads take a second, and notes what it does.

    Attributes:
        seconds: How long an inference takes.
        version: What it serves.
        error: Why its loads fail; "" to succeed.
    """

    seconds: float = 0.1
    version: int = 1
    error: str = ""
    is_loading: bool = False
    running: int = 0
    faults: list[str] = field(default_factory=list)
    loaded_at: list[float] = field(default_factory=list)
    calls: int = 0

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelLoadRequest):
            if self.running:
                self.faults.append("load while calls run")
            self.is_loading = True
            await elapse(1)
            self.is_loading = False
            if self.error:
                raise UpstreamError(self.error)
            self.loaded_at.append(now())
            self.version += 1
            return None
        assert isinstance(call, InferRequest | StreamInferRequest)
        if call.model == M and self.is_loading:
            self.faults.append("call while it loads")
        self.running += call.model == M
        self.calls += 1
        try:
            await elapse(self.seconds)
        finally:
            self.running -= call.model == M
        return InferResponse(model=ModelRef("m", str(self.version)), outputs=())


@dataclass
class Setup:
    """The layer with its servers, and the states that it has reported."""

    servers: list[Server]
    endpoints: Endpoints
    service: Service
    states: list[tuple[str, str]]

    async def infer(self, name: str = "m", **fields: Any) -> str:
        """Return the version that replies."""
        reply = await self.endpoints(InferRequest(model=ModelRef(name), **fields))
        return reply.model.version


def run(
    test: Callable[[Setup], Coroutine[Any, Any, None]],
    *servers: Server,
    trial: TrialOf | None = None,
    **settings: Any,
) -> None:
    """Run a test in virtual time."""

    async def main() -> None:
        counts = ModelCalls()
        members = []
        for number, server in enumerate(servers):
            counted = CountModelCalls(Entries(server, server, server), counts, f"s{number}")
            members.append(Endpoint(f"s{number}", counted))
        endpoints = Endpoints("up", members, clock=now)
        states: list[tuple[str, str]] = []
        warm_up = None if trial is None else WarmUpConfig(capture="c", timeout=5.0)
        layer = RollingLoad(
            endpoints,
            endpoints,
            counts,
            RollingLoadConfig(warm_up=warm_up, **settings),
            trial,
            lambda _model, endpoint, state: states.append((endpoint, state)),
            now,
        )
        await test(Setup(list(servers), endpoints, layer, states))

    simulate(main)
    assert [] == [fault for server in servers for fault in server.faults]


async def traffic(setup: Setup, until: Callable[[], bool]) -> list[str]:
    """Call the model until a condition holds; return the versions that replied."""
    versions = []
    while not until():
        versions.append(await setup.infer())
    return versions


def test_endpoints_load_one_after_the_other_under_load() -> None:
    """No call meets an endpoint that loads, and the endpoint has none while it begins."""

    async def test(setup: Setup) -> None:
        load = asyncio.ensure_future(setup.service(LOAD))
        await asyncio.gather(*(traffic(setup, load.done) for _ in range(6)))
        await load
        times = sorted(time for server in setup.servers for time in server.loaded_at)
        assert 3 == len(times)
        assert all(later - earlier >= 1 for earlier, later in pairwise(times))
        states = [state for endpoint, state in setup.states if endpoint == "s0"]
        assert ["draining", "loading", "warming", "ready"] == states
        assert {"2"} == {await setup.infer() for _ in range(6)}

    run(test, *(Server() for _ in range(3)))


def test_the_first_failure_stops_the_load() -> None:
    """This endpoint gets no calls of the model any more, and others keep the old version."""

    async def test(setup: Setup) -> None:
        with pytest.raises(LoadFailed, match=r"stopped at endpoint 2 of 3.*: no memory") as found:
            await setup.service(LOAD)
        assert isinstance(found.value.__cause__, GatewayError)  # its text is marked in the log
        assert [2, 1, 1] == [server.version for server in setup.servers]
        assert {"1", "2"} == {await setup.infer() for _ in range(9)}
        assert 0 == setup.servers[1].calls
        await setup.infer("other")
        assert ("s1", "failed") in setup.states

    run(test, Server(), Server(error="no memory"), Server())


def test_a_load_that_succeeds_later_gives_the_endpoint_its_calls_back() -> None:
    """The endpoint without a working version comes first."""

    async def test(setup: Setup) -> None:
        with pytest.raises(LoadFailed):
            await setup.service(LOAD)
        setup.servers[1].error = ""
        await setup.service(LOAD)
        assert (
            min(server.loaded_at[-1] for server in setup.servers)
            == (setup.servers[1].loaded_at[-1])
        )
        await asyncio.gather(*(setup.infer() for _ in range(9)))
        assert setup.servers[1].calls

    run(test, Server(), Server(error="no memory"), Server())


def test_a_bad_version_stops_at_the_first_endpoint() -> None:
    """Its recorded calls have other replies than before."""

    async def trial(service: Service, model: str) -> TrialResult:
        await service(InferRequest(model=ModelRef(model)))
        return TrialResult(50, ("mismatch 12.00% > 0.10%",))

    async def test(setup: Setup) -> None:
        expected = r"endpoint 1 of 3.*mismatch 12\.00% > 0\.10%, of 50 recorded calls"
        with pytest.raises(LoadFailed, match=expected):
            await setup.service(LOAD)
        assert {"1"} == {await setup.infer() for _ in range(9)}
        assert 1 == setup.servers[0].calls

    run(test, *(Server() for _ in range(3)), trial=trial)


@pytest.mark.parametrize(
    ("error", "text"),
    [(OSError("no such folder"), "cannot be sent"), (None, "took longer than 5 s")],
)
def test_a_trial_that_cannot_be_made_stops_the_load(error: OSError | None, text: str) -> None:
    """A version that nobody has tried does not reach the next endpoint."""

    async def trial(_service: Service, _model: str) -> TrialResult:
        if error is not None:
            raise error
        await elapse(10)
        return TrialResult(1)

    async def test(setup: Setup) -> None:
        with pytest.raises(LoadFailed, match=text):
            await setup.service(LOAD)
        assert [2, 1] == [server.version for server in setup.servers]

    run(test, Server(), Server(), trial=trial)


def test_too_few_endpoints_would_serve_the_model() -> None:
    """Nothing is loaded then, and the endpoint keeps its calls."""

    async def test(setup: Setup) -> None:
        with pytest.raises(LoadFailed, match=r"0 other endpoints serve it; expected at least 1"):
            await setup.service(LOAD)
        assert "1" == await setup.infer()

    run(test, Server())


def test_endpoints_load_at_the_same_time_if_allowed() -> None:
    """Two of four at once, while two serve."""

    async def test(setup: Setup) -> None:
        await setup.service(LOAD)
        assert 2 == len({time for server in setup.servers for time in server.loaded_at})

    run(test, *(Server() for _ in range(4)), at_once=2, min_ready=2)


def test_a_load_does_not_wait_for_calls_without_end() -> None:
    """After `drain` the server ends its running calls itself."""

    async def test(setup: Setup) -> None:
        calls = [asyncio.ensure_future(setup.infer()) for _ in range(2)]
        await asyncio.sleep(0)
        await setup.service(LOAD)
        assert 1 + 3 + 3 <= now() < 60
        setup.servers[0].faults.clear()
        setup.servers[1].faults.clear()
        await asyncio.gather(*calls)

    run(test, Server(seconds=60), Server(seconds=60), drain=3.0)


def test_open_sequences_stay_at_an_endpoint_that_drains() -> None:
    """New ones go to another endpoint."""

    async def test(setup: Setup) -> None:
        await setup.infer(sequence=CallSequence(id=1, start=True))
        index = next(i for i, server in enumerate(setup.servers) if server.calls)
        setup.endpoints.close_to(setup.endpoints.endpoints[index], "m")
        await setup.infer(sequence=CallSequence(id=1, end=True))
        assert 2 == setup.servers[index].calls
        for number in range(2, 9):
            await setup.infer(sequence=CallSequence(id=number, start=True, end=True))
        assert 2 == setup.servers[index].calls

    run(test, Server(), Server())


def test_a_model_without_an_endpoint_is_unavailable() -> None:
    """A failed version gets no calls even if no other endpoint is left."""

    async def test(setup: Setup) -> None:
        for endpoint in setup.endpoints.endpoints:
            setup.endpoints.close_to(endpoint, "m")
        with pytest.raises(Unavailable, match="rolling_load"):
            await setup.infer()
        await setup.infer("other")

    run(test, Server(), Server())


def test_a_failed_load_leaves_no_reference_cycle() -> None:
    """A cycle would hold the files of a load until the garbage collector runs."""

    async def test(setup: Setup) -> None:
        gc.collect()
        gc.disable()
        try:
            with suppress(LoadFailed):
                await setup.service(LOAD)
            await elapse(1)
            assert [] == [each for each in gc.get_objects() if isinstance(each, LoadFailed)]
        finally:
            gc.enable()

    run(test, Server(error="no memory"), Server())


def test_a_client_that_leaves_does_not_stop_a_load() -> None:
    """Half of the endpoints would stay without calls."""

    async def test(setup: Setup) -> None:
        client = asyncio.ensure_future(setup.service(LOAD))
        await elapse(0.5)
        client.cancel()
        await elapse(5)
        assert [2, 2] == [server.version for server in setup.servers]

    run(test, Server(), Server())
