"""The layer Residency before an upstream, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.api.layer import Entries
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import ConnectFailure, LoadFailed, ModelNotFound, Unavailable, UpstreamError
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry
from gateway.residency.controller import ResidencyController
from gateway.residency.layer import Residency
from gateway.residency.plan import ModelPhase
from gateway.residency.server import EndpointServer
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.settings.patterns import globs
from tests.simulation.residency import LoadingServer, Uncounted, rules
from tests.simulation.virtual_time import elapse, now, simulate

STATES = {
    ModelPhase.ABSENT: ModelState.UNKNOWN,
    ModelPhase.LOADED: ModelState.READY,
    ModelPhase.LOADING: ModelState.LOADING,
    ModelPhase.UNLOADING: ModelState.UNLOADING,
}


@dataclass
class Server(LoadingServer):
    """A server of the Open Inference Protocol in virtual time.

    Attributes:
        calls: The models of the inferences that reached it.
        seconds: How long one takes.
        is_down: It cannot be reached.
    """

    calls: list[str] = field(default_factory=list)
    seconds: float = 0.01
    is_down: bool = False
    questions: int = 0

    async def __call__(self, call: Call[Any], /) -> Any:  # noqa: PLR0911  # one for each kind
        if self.is_down:
            raise ConnectFailure("it is down")
        name = "" if call.model is None else call.model.name
        match call:
            case RepositoryIndexRequest():
                found = await self.index()
                return tuple(RepositoryEntry(each, "1", STATES[found[each]]) for each in found)
            case ModelLoadRequest():
                return await self.load(name, call.parameters)
            case ModelUnloadRequest():
                return await self.unload(name)
            case InferRequest():
                self.calls.append(name)
                await self.infer(name, self.seconds)
                return InferResponse(model=ModelRef(name), outputs=())
            case StreamInferRequest():
                self.calls.append(name)
                return self.replies(name)
            case ModelMetadataRequest():
                self.questions += 1
                await self.infer(name, 0)
                return ModelMetadata(name=name)
            case ModelReadyRequest():
                return self.phases.get(name) is ModelPhase.LOADED
        raise AssertionError(call)

    async def replies(self, name: str) -> AsyncIterator[InferResponse]:
        for _ in range(3):
            await self.infer(name, self.seconds)
            yield InferResponse(model=ModelRef(name), outputs=(), is_final=False)


@dataclass
class Setup:
    """The layer with its servers."""

    residency: Residency
    endpoints: Endpoints
    servers: list[Server]

    async def infer(self, name: str, **fields: Any) -> InferResponse:
        """Infer by the entry for inferences."""
        return await self.residency.handle_inference(InferRequest(model=ModelRef(name), **fields))

    async def stream(self, name: str) -> list[InferResponse]:
        """Return the replies of a stream."""
        request = InferRequest(model=ModelRef(name))
        items = await self.residency(
            StreamInferRequest(model=request.model, context=request.context, request=request)
        )
        return [item async for item in items]

    def loads(self) -> list[list[str]]:
        """Return the loads of each server."""
        return [server.loads for server in self.servers]


def run(
    test: Callable[[Setup], Coroutine[Any, Any, None]],
    *servers: Server,
    copies: int = 1,
    room: int = 2,
    pinned: tuple[str, ...] = (),
    allow: tuple[str, ...] = ("*",),
) -> Setup:
    """Run a test in virtual time, and check that nothing is held afterwards."""

    async def main() -> Setup:
        members = [Endpoint(f"s{number}", server) for number, server in enumerate(servers)]
        endpoints = Endpoints("up", members, clock=now)

        def make(endpoint: Endpoint, pinned: tuple[str, ...]) -> ResidencyController:
            server = EndpointServer(endpoint, 60.0, now)
            own = rules(room, allow=globs(allow))
            return ResidencyController(
                endpoint.name, server, own, Uncounted(), pinned=pinned, clock=now
            )

        inner = Entries(endpoints, endpoints, endpoints)
        layer = Residency(inner, endpoints, make, lambda _: copies, pinned=pinned, clock=now)
        layer.start()
        setup = Setup(layer, endpoints, list(servers))
        await test(setup)
        for home in layer.homes.all():
            assert not any(each.uses for each in home.controller.plan.models.values())
        await layer.close()
        return setup

    setup = simulate(main)
    assert [] == [fault for server in servers for fault in server.faults]
    return setup


def test_probes_check_liveness() -> None:
    """A server is not ready while it loads a model, and serves the others."""

    async def test(setup: Setup) -> None:
        assert [ServerLiveRequest] == [each.probe_call for each in setup.endpoints.endpoints]

    run(test, Server(["a"]))


def test_a_call_loads_its_model_once() -> None:
    """The second call finds it loaded."""

    async def test(setup: Setup) -> None:
        await setup.infer("a")
        await setup.infer("a")
        assert [["a"]] == setup.loads()

    run(test, Server(["a"]))


def test_an_unknown_model_is_not_loaded() -> None:
    """The index is read again for its name, but not more often than once a second."""

    async def test(setup: Setup) -> None:
        await elapse(2)
        setup.servers[0].names = ["a", "b"]
        await setup.infer("b")
        for _ in range(3):
            with pytest.raises(ModelNotFound, match="does not have it"):
                await setup.infer("c")
        assert [["b"]] == setup.loads()

    run(test, Server(["a"]))


def test_models_that_calls_may_not_load_are_served_while_loaded() -> None:
    """`allow` has patterns; a client's load is no call in this sense."""

    async def test(setup: Setup) -> None:
        with pytest.raises(ModelNotFound, match=r"residency\.allow"):
            await setup.infer("b")
        await setup.residency(ModelLoadRequest(model=ModelRef("b")))
        await setup.infer("b")

    run(test, Server(["a", "b"]), allow=("a*",))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_whose_model_was_gone_is_sent_again(is_stream: bool) -> None:
    """Another gateway has unloaded the model; the caller sees nothing of it."""

    async def test(setup: Setup) -> None:
        server = setup.servers[0]
        await setup.infer("a")
        server.phases["a"] = ModelPhase.ABSENT
        if is_stream:
            assert len(await setup.stream("a")) == 3
        else:
            await setup.infer("a")
        assert [["a", "a"]] == setup.loads()

    run(test, Server(["a"]))


def test_a_call_is_sent_again_at_most_twice() -> None:
    """Then its error is that of the server."""

    async def test(setup: Setup) -> None:
        server = setup.servers[0]
        original = server.load

        async def load_and_lose(name: str, parameters: Any, /) -> None:
            await original(name, parameters)
            asyncio.get_running_loop().call_soon(server.phases.pop, name, None)

        server.load = load_and_lose  # type: ignore[method-assign]
        with pytest.raises(Exception, match="is not loaded"):
            await setup.infer("a")
        assert ["a"] * 3 == server.calls

    run(test, Server(["a"]))


def test_an_error_of_a_loaded_model_is_returned() -> None:
    """The index says that the model is there, so the call is not repeated."""

    async def test(setup: Setup) -> None:
        server = setup.servers[0]
        await setup.infer("a")

        async def fail(_name: str, _seconds: float) -> None:
            raise ModelNotFound("no such version")

        server.infer = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(ModelNotFound, match="no such version"):
            await setup.infer("a")
        assert ["a", "a"] == server.calls

    run(test, Server(["a"]))


def test_a_stream_holds_its_model_until_it_ends() -> None:
    """Two other models take turns in the second place meanwhile."""

    async def test(setup: Setup) -> None:
        setup.servers[0].seconds = 2.0
        stream = asyncio.ensure_future(setup.stream("a"))
        await elapse(1)
        setup.servers[0].seconds = 0.01
        await setup.infer("b")
        await setup.infer("c")
        assert ["b"] == setup.servers[0].unloads
        await stream

    run(test, Server(["a", "b", "c"], 0.1))


def test_an_open_sequence_holds_its_model() -> None:
    """Its last request gives the model back."""

    async def test(setup: Setup) -> None:
        await setup.infer("a", sequence=CallSequence(id=7, start=True))
        await setup.infer("b")
        await setup.infer("c")
        await setup.infer("a", sequence=CallSequence(id=7))
        assert ["b"] == setup.servers[0].unloads
        await setup.infer("a", sequence=CallSequence(id=7, end=True))
        await setup.infer("b")
        assert ["b", "c"] == setup.servers[0].unloads

    run(test, Server(["a", "b", "c"], 0.1))


def test_an_idle_sequence_holds_its_model_no_longer() -> None:
    """A client that never ends a sequence does not keep a place for ever."""

    async def test(setup: Setup) -> None:
        await setup.infer("a", sequence=CallSequence(id=7, start=True))
        await elapse(setup.endpoints.affinity.idle_s + 1)

    run(test, Server(["a"]))


def test_a_sequence_continues_at_a_model_that_is_drained() -> None:
    """New calls wait, and the open sequence ends first."""

    async def test(setup: Setup) -> None:
        await setup.infer("a", sequence=CallSequence(id=7, start=True))
        other = asyncio.ensure_future(setup.infer("b"))
        await elapse(3)
        assert [["a"]] == setup.loads()
        await setup.infer("a", sequence=CallSequence(id=7, end=True))
        await other
        assert [["a", "b"]] == setup.loads()

    run(test, Server(["a", "b"], 0.1), room=1)


def test_metadata_are_in_memory_after_a_load() -> None:
    """A question for those of an absent model loads it once."""

    async def test(setup: Setup) -> None:
        question = ModelMetadataRequest(model=ModelRef("a"))
        first = await setup.residency(question)
        await setup.infer("b")
        await setup.infer("c")
        assert ["a"] == setup.servers[0].unloads
        assert first == await setup.residency(question)
        assert 1 == setup.servers[0].questions

    run(test, Server(["a", "b", "c"], 0.1))


def test_a_model_is_ready_if_a_call_would_be_served() -> None:
    """Neither an unknown model is, nor one whose load has just failed."""

    async def test(setup: Setup) -> None:
        async def ready(name: str) -> bool:
            return await setup.residency(ModelReadyRequest(model=ModelRef(name)))

        assert await ready("a")
        assert not await ready("x")
        assert await ready("broken")
        with pytest.raises(LoadFailed, match="is broken"):
            await setup.infer("broken")
        assert not await ready("broken")
        assert [["broken"]] == setup.loads()

    run(test, Server(["a", "broken"], broken=frozenset({"broken"})))


def test_a_load_of_a_client_makes_a_model_the_most_recent() -> None:
    """Another one leaves for the next."""

    async def test(setup: Setup) -> None:
        await setup.infer("a")
        await setup.infer("b")
        setup.servers[0].faults.clear()
        await setup.residency(ModelLoadRequest(model=ModelRef("a")))
        setup.servers[0].faults.clear()  # a client may load a loaded model
        await setup.infer("c")
        assert ["b"] == setup.servers[0].unloads
        assert ["a", "b", "a", "c"] == setup.servers[0].loads

    run(test, Server(["a", "b", "c"], 0.1))


def test_an_unload_of_a_client_waits_for_running_calls() -> None:
    """Later callers wait for the model to come back."""

    async def test(setup: Setup) -> None:
        setup.servers[0].seconds = 1.0
        running = asyncio.ensure_future(setup.infer("a"))
        await elapse(0.5)
        unload = asyncio.ensure_future(setup.residency(ModelUnloadRequest(model=ModelRef("a"))))
        await elapse(0.1)
        later = asyncio.ensure_future(setup.infer("a"))
        await running
        await unload
        await later
        assert [["a", "a"]] == setup.loads()

    run(test, Server(["a"], 0.1))


def test_a_model_lives_at_one_of_several_endpoints() -> None:
    """The hash of its name decides, and each endpoint has its own room."""

    async def test(setup: Setup) -> None:
        names = [f"m{number}" for number in range(8)]
        for _ in range(3):
            for name in names:
                await setup.infer(name)
        loads = setup.loads()
        assert sorted(names) == sorted([each for one in loads for each in one])
        assert all(loads)

    names = [f"m{number}" for number in range(8)]
    run(test, *(Server(names, 0.1) for _ in range(3)), room=8)


def test_copies_of_a_model_live_at_several_endpoints() -> None:
    """The first call does not wait for the second copy."""

    async def test(setup: Setup) -> None:
        await setup.infer("a")
        await setup.infer("a")
        await elapse(1)
        await asyncio.gather(*(setup.infer("a") for _ in range(10)))
        assert 2 == [each for one in setup.loads() for each in one].count("a")
        used = [server for server in setup.servers if server.calls]
        assert 2 == len(used)

    run(test, *(Server(["a"], 0.1) for _ in range(3)), copies=2)


def test_pinned_models_are_loaded_where_they_live() -> None:
    """Not at every endpoint."""

    async def test(setup: Setup) -> None:
        await elapse(1)
        assert ["a"] == [each for one in setup.loads() for each in one]

    run(test, *(Server(["a"], 0.1) for _ in range(3)), pinned=("a",))


def test_a_model_moves_when_its_endpoint_is_lost() -> None:
    """The call goes to the next endpoint of its hash, which loads the model."""

    async def test(setup: Setup) -> None:
        await setup.infer("a")
        home = next(server for server in setup.servers if server.loads)
        home.is_down = True
        await setup.infer("a")
        other = next(server for server in setup.servers if server is not home)
        assert ["a"] == other.loads

    run(test, *(Server(["a"], 0.1) for _ in range(2)))


def test_the_index_shows_a_model_as_ready_that_one_endpoint_holds() -> None:
    """The indexes of all endpoints are one."""

    async def test(setup: Setup) -> None:
        for name in ("a", "b", "c"):
            await setup.infer(name)
        entries = await setup.residency(RepositoryIndexRequest())
        states = {entry.name: entry.state for entry in entries}
        ready = {name for name, state in states.items() if state is ModelState.READY}
        assert {"a", "b", "c"} == ready
        assert set("abcd") == set(states)

    run(test, *(Server(list("abcd"), 0.1) for _ in range(2)), room=3)


def test_a_failed_load_does_not_eject_the_endpoint() -> None:
    """The endpoint serves other models as before."""

    async def test(setup: Setup) -> None:
        for _ in range(8):
            with pytest.raises(LoadFailed, match="is broken"):
                await setup.infer("broken")
            await elapse(11)
        assert all(each.is_available(now()) for each in setup.endpoints.endpoints)

    names = ["a", "broken"]
    run(test, *(Server(names, 0.1, broken=frozenset({"broken"})) for _ in range(2)))


def test_a_failed_load_leaves_no_reference_cycle() -> None:
    """A cycle would hold the body of the call until the garbage collector runs."""

    async def test(setup: Setup) -> None:
        for _ in range(3):
            with suppress(LoadFailed):
                await setup.infer("broken")
            await elapse(11)
        gc.collect()
        gc.disable()
        try:
            with suppress(LoadFailed):
                await setup.infer("broken")
            await elapse(1)
            assert [] == [each for each in gc.get_objects() if isinstance(each, LoadFailed)]
        finally:
            gc.enable()

    run(test, Server(["broken"], broken=frozenset({"broken"})))


def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    """The index cannot be read, so that no model is known."""

    async def test(setup: Setup) -> None:
        setup.servers[0].is_down = True
        with pytest.raises(Unavailable, match="it is down"):
            await setup.infer("a")
        setup.servers[0].is_down = False
        await elapse(2)
        await setup.infer("a")

    server = Server(["a"])
    server.is_down = True
    run(test, server)


def test_errors_of_inferences_are_those_of_the_server() -> None:
    """Nothing is repeated, and the reference ends."""

    async def test(setup: Setup) -> None:
        await setup.infer("a")

        async def fail(_name: str, _seconds: float) -> None:
            raise UpstreamError("a fault of the model")

        setup.servers[0].infer = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(UpstreamError, match="a fault of the model"):
            await setup.infer("a")
        assert ["a", "a"] == setup.servers[0].calls

    run(test, Server(["a"]))
