"""Answers about the gateway itself."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from structlog.testing import capture_logs

from gateway.ir.calls import (
    InferRequest,
    LogSettingsRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerSwitchRequest,
    ServerTrendsRequest,
)
from gateway.ir.errors import Forbidden, Unavailable, Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry, ServerMetadata, Trend
from gateway.routing.balance import Readiness
from gateway.routing.server_info import Index, ServerInfo, ServerOptions
from tests.fakes import FakeClock, ScriptedService, settle

WHO = ServerMetadata("tensor-gateway", "1.0", ("binary_tensor_data",))
READY, DOWN = ModelState.READY, ModelState.UNAVAILABLE
ENTRY = RepositoryEntry("a", "1", READY)


async def test_live_and_who() -> None:
    """The gateway is live while it answers, and says who it is."""
    server = ServerInfo(ServerOptions(metadata=WHO))
    assert await server(ServerLiveRequest()) is True
    assert WHO == await server(ServerMetadataRequest())


@pytest.mark.parametrize(
    ("rule", "routes", "expected"),
    [
        (Readiness.ALL, [True, False], False),
        (Readiness.ALL, [True, True], True),
        (Readiness.ANY, [True, False], True),
        (Readiness.ANY, [False], False),
        (Readiness.ANY, [], True),
    ],
)
async def test_ready_by_its_routes(rule: Readiness, routes: list[bool], expected: bool) -> None:
    """Ready is what the routes are, by the server's rule."""
    options = ServerOptions(
        metadata=WHO, readiness=rule, routes=[partial(bool, part) for part in routes]
    )
    assert expected == await ServerInfo(options)(ServerReadyRequest())


async def test_trends_are_what_was_measured() -> None:
    """Read when they are asked for."""
    trends = {"qps": Trend(((0, 1.0),))}
    server = ServerInfo(ServerOptions(metadata=WHO, trends=lambda: trends))
    assert trends is await server(ServerTrendsRequest())


async def test_offline_is_not_ready_but_live() -> None:
    """A client that may say so takes readiness away, and gives it back as far as routes have it."""
    server = ServerInfo(ServerOptions(metadata=WHO))
    await server(ServerSwitchRequest(is_online=False))
    assert (False, True) == (await server(ServerReadyRequest()), await server(ServerLiveRequest()))
    await server(ServerSwitchRequest(is_online=True))
    assert await server(ServerReadyRequest())
    server = ServerInfo(ServerOptions(metadata=WHO, routes=[lambda: False]))
    await server(ServerSwitchRequest(is_online=True))
    assert not await server(ServerReadyRequest())


async def test_the_gateway_may_start_offline() -> None:
    """Then it is not ready before a client says so."""
    server = ServerInfo(ServerOptions(metadata=WHO, online=False))
    assert not await server(ServerReadyRequest())
    await server(ServerSwitchRequest(is_online=True))
    assert await server(ServerReadyRequest())


@pytest.mark.parametrize("online", [True, False])
async def test_who_may_not_switch_may_ask_for_what_is_so(online: bool) -> None:
    """A client's routine call to be online changes nothing; one that would is refused."""
    server = ServerInfo(ServerOptions(metadata=WHO, online=online))
    await server(ServerSwitchRequest(is_online=online, is_allowed=False))
    with pytest.raises(Forbidden, match="offline" if online else "online"):
        await server(ServerSwitchRequest(is_online=not online, is_allowed=False))
    assert online is await server(ServerReadyRequest())


async def test_draining_is_not_ready_but_live() -> None:
    """Once it drains the gateway asks for no more work, and answers."""
    server = ServerInfo(ServerOptions(metadata=WHO))
    server.drain()
    assert (False, True) == (await server(ServerReadyRequest()), await server(ServerLiveRequest()))


async def test_other_questions_are_unsupported() -> None:
    """A question the gateway has no answer to is refused by name."""
    with pytest.raises(Unsupported, match="the gateway does not support InferRequest"):
        await ServerInfo(ServerOptions(metadata=WHO))(InferRequest())


async def test_index_joins_sources_and_configured_names() -> None:
    """Each model and version is listed once; configured names not listed have their route's state."""
    indexes = [
        Index("local", ScriptedService((ENTRY, RepositoryEntry("a", "2", DOWN)))),
        Index(
            "up",
            ScriptedService(
                (RepositoryEntry("a", "1", DOWN), RepositoryEntry("b"), RepositoryEntry("hidden"))
            ),
        ),
    ]
    options = ServerOptions(
        metadata=WHO,
        named={"a": lambda: False, "c": lambda: True, "d": lambda: False},
        served=lambda name: name != "hidden",
    )
    server = ServerInfo(options, indexes)
    expected = (
        ENTRY,
        RepositoryEntry("a", "2", DOWN),
        RepositoryEntry("b"),
        RepositoryEntry("c", "", READY),
        RepositoryEntry("d", "", DOWN),
    )
    assert expected == await server(RepositoryIndexRequest())
    ready = tuple(entry for entry in expected if entry.state is not DOWN)
    assert ready == await server(RepositoryIndexRequest(ready_only=True))


async def test_index_is_remembered_for_a_while() -> None:
    """An upstream is asked again when its answer is too old."""
    clock = FakeClock()
    service = ScriptedService((ENTRY,), ())
    index = Index("up", service, ttl_s=10, clock=clock)
    assert [(ENTRY,), (ENTRY,)] == [await index.entries(), await index.entries()]
    clock.advance(10)
    assert () == await index.entries()


async def test_index_is_asked_once_by_many() -> None:
    """Callers at the same time share one question."""
    service = ScriptedService()
    index = Index("up", service)
    tasks = [asyncio.ensure_future(index.entries()) for _ in range(5)]
    await settle()
    service.waiting[0].set_result((ENTRY,))
    assert [(ENTRY,)] * 5 == await asyncio.gather(*tasks)
    assert 1 == len(service.calls)


async def test_every_model_is_served_unless_said_otherwise() -> None:
    """Without a filter everything that is listed is shown."""
    server = ServerInfo(ServerOptions(metadata=WHO), [Index("up", ScriptedService((ENTRY,)))])
    assert (ENTRY,) == await server(RepositoryIndexRequest())


async def test_server_that_cannot_list_has_no_models() -> None:
    """A server whose protocol has no index adds nothing, silently."""
    with capture_logs() as logs:
        assert () == await Index("up", ScriptedService(Unsupported("no index"))).entries()
    assert [] == logs


async def test_models_of_a_lost_server_are_unavailable() -> None:
    """What a server last listed is shown as unavailable when it does not answer."""
    clock = FakeClock()
    service = ScriptedService((ENTRY,), Unavailable("refused"))
    index = Index("up", service, ttl_s=1, timeout_s=0.01, clock=clock)
    await index.entries()
    clock.advance(1)
    with capture_logs() as logs:
        assert (RepositoryEntry("a", "1", DOWN, "refused"),) == await index.entries()
        clock.advance(1)
        late = await index.entries()
    assert (RepositoryEntry("a", "1", DOWN, "no response within 0.01 s"),) == late
    assert ["refused", "no response within 0.01 s"] == [entry["reason"] for entry in logs]


async def test_a_forgotten_index_is_asked_for_again() -> None:
    """A model that was loaded is listed at once, however long an answer holds."""
    service = ScriptedService((ENTRY,), (ENTRY, RepositoryEntry("b", "1", READY)))
    server = ServerInfo(
        ServerOptions(metadata=WHO, served=lambda name: name != "hidden"), [Index("up", service)]
    )
    listed = [await server(RepositoryIndexRequest()) for _ in range(2)]
    server.forget()
    listed.append(await server(RepositoryIndexRequest()))
    assert [1, 1, 2] == [len(entries) for entries in listed]
    assert (True, False) == (server.served("a"), server.served("hidden"))


async def test_log_settings_are_told_where_they_can_be_had() -> None:
    """The gateway's own log; a change is logged itself, with who made it."""
    settings = {"log_info": True}
    server = ServerInfo(ServerOptions(metadata=WHO, log=lambda changes: {**settings, **changes}))
    with capture_logs() as lines:
        assert settings == await server(LogSettingsRequest(own=True))
        changed = await server(LogSettingsRequest(own=True, changes={"log_info": False}))
    assert {"log_info": False} == changed
    assert ["log settings changed"] == [line["event"] for line in lines]
    with pytest.raises(Unsupported):
        await ServerInfo(ServerOptions(metadata=WHO))(LogSettingsRequest(own=True))


async def test_the_reason_of_a_missing_index_has_no_address() -> None:
    """Clients see why models are not available; where their server is, only the log says."""
    clock = FakeClock()
    lost = Unavailable("cannot connect to upstream 10.1.2.3:8001: refused")
    index = Index("up", ScriptedService((ENTRY,), lost), ttl_s=10, clock=clock)
    await index.entries()
    clock.advance(10)
    with capture_logs() as lines:
        (entry,) = await index.entries()
    assert (DOWN, "cannot connect to upstream ...: refused") == (entry.state, entry.reason)
    assert lost.message in str(lines)
