"""Replies to calls about the gateway itself."""

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

METADATA = ServerMetadata("tensor-gateway", "1.0", ("binary_tensor_data",))
READY, DOWN = ModelState.READY, ModelState.UNAVAILABLE
ENTRY = RepositoryEntry("a", "1", READY)


async def test_live_and_metadata() -> None:
    """The gateway is live while it replies, and has its own metadata."""
    server = ServerInfo(ServerOptions(metadata=METADATA))
    assert await server(ServerLiveRequest()) is True
    assert METADATA == await server(ServerMetadataRequest())


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
async def test_readiness_follows_the_routes(
    rule: Readiness, routes: list[bool], expected: bool
) -> None:
    """The rule of the server combines the readiness of its routes."""
    options = ServerOptions(
        metadata=METADATA, readiness=rule, routes=[partial(bool, part) for part in routes]
    )
    assert expected == await ServerInfo(options)(ServerReadyRequest())


async def test_trends_are_returned() -> None:
    """They are read at each request."""
    trends = {"qps": Trend(((0, 1.0),))}
    server = ServerInfo(ServerOptions(metadata=METADATA, trends=lambda: trends))
    assert trends is await server(ServerTrendsRequest())


async def test_offline_is_not_ready_but_live() -> None:
    """A permitted client switches readiness off and on; routes must be ready, too."""
    server = ServerInfo(ServerOptions(metadata=METADATA))
    await server(ServerSwitchRequest(is_online=False))
    assert (False, True) == (await server(ServerReadyRequest()), await server(ServerLiveRequest()))
    await server(ServerSwitchRequest(is_online=True))
    assert await server(ServerReadyRequest())
    server = ServerInfo(ServerOptions(metadata=METADATA, routes=[lambda: False]))
    await server(ServerSwitchRequest(is_online=True))
    assert not await server(ServerReadyRequest())


async def test_the_gateway_may_start_offline() -> None:
    """It is not ready until a client switches it online."""
    server = ServerInfo(ServerOptions(metadata=METADATA, online=False))
    assert not await server(ServerReadyRequest())
    await server(ServerSwitchRequest(is_online=True))
    assert await server(ServerReadyRequest())


@pytest.mark.parametrize("online", [True, False])
async def test_a_forbidden_switch_may_confirm_the_current_state(online: bool) -> None:
    """A switch to the current state succeeds; one that changes it is rejected."""
    server = ServerInfo(ServerOptions(metadata=METADATA, online=online))
    await server(ServerSwitchRequest(is_online=online, is_allowed=False))
    with pytest.raises(Forbidden, match="offline" if online else "online"):
        await server(ServerSwitchRequest(is_online=not online, is_allowed=False))
    assert online is await server(ServerReadyRequest())


async def test_draining_is_not_ready_but_live() -> None:
    """A draining gateway still replies."""
    server = ServerInfo(ServerOptions(metadata=METADATA))
    server.drain()
    assert (False, True) == (await server(ServerReadyRequest()), await server(ServerLiveRequest()))


async def test_other_calls_are_unsupported() -> None:
    """The error names the type of the call."""
    with pytest.raises(Unsupported, match="the gateway does not support InferRequest"):
        await ServerInfo(ServerOptions(metadata=METADATA))(InferRequest())


async def test_the_index_merges_sources_and_configured_names() -> None:
    """Each model version is listed once; other configured names have their route's state."""
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
        metadata=METADATA,
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


async def test_the_index_is_cached() -> None:
    """The upstream is called again after `ttl_s`."""
    clock = FakeClock()
    service = ScriptedService((ENTRY,), ())
    index = Index("up", service, ttl_s=10, clock=clock)
    assert [(ENTRY,), (ENTRY,)] == [await index.entries(), await index.entries()]
    clock.advance(10)
    assert () == await index.entries()


async def test_concurrent_index_calls_share_one_request() -> None:
    """Five callers send one request to the upstream."""
    service = ScriptedService()
    index = Index("up", service)
    tasks = [asyncio.ensure_future(index.entries()) for _ in range(5)]
    await settle()
    service.waiting[0].set_result((ENTRY,))
    assert [(ENTRY,)] * 5 == await asyncio.gather(*tasks)
    assert 1 == len(service.calls)


async def test_all_models_are_listed_without_a_filter() -> None:
    """The default filter serves every name."""
    server = ServerInfo(ServerOptions(metadata=METADATA), [Index("up", ScriptedService((ENTRY,)))])
    assert (ENTRY,) == await server(RepositoryIndexRequest())


async def test_a_server_without_an_index_has_no_models() -> None:
    """Nothing is logged."""
    with capture_logs() as logs:
        assert () == await Index("up", ScriptedService(Unsupported("no index"))).entries()
    assert [] == logs


async def test_models_of_a_lost_server_are_unavailable() -> None:
    """The last known models of a server are listed as unavailable when it does not reply."""
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


async def test_a_forgotten_index_is_requested_again() -> None:
    """A loaded model is listed at once, although the cached index has not expired."""
    service = ScriptedService((ENTRY,), (ENTRY, RepositoryEntry("b", "1", READY)))
    server = ServerInfo(
        ServerOptions(metadata=METADATA, served=lambda name: name != "hidden"),
        [Index("up", service)],
    )
    listed = [await server(RepositoryIndexRequest()) for _ in range(2)]
    server.forget()
    listed.append(await server(RepositoryIndexRequest()))
    assert [1, 1, 2] == [len(entries) for entries in listed]
    assert (True, False) == (server.served("a"), server.served("hidden"))


async def test_log_settings_of_the_gateway_are_supported() -> None:
    """A change is logged; without a log the call is unsupported."""
    settings = {"log_info": True}
    server = ServerInfo(
        ServerOptions(metadata=METADATA, log=lambda changes: {**settings, **changes})
    )
    with capture_logs() as lines:
        assert settings == await server(LogSettingsRequest(own=True))
        changed = await server(LogSettingsRequest(own=True, changes={"log_info": False}))
    assert {"log_info": False} == changed
    assert ["log settings changed"] == [line["event"] for line in lines]
    with pytest.raises(Unsupported):
        await ServerInfo(ServerOptions(metadata=METADATA))(LogSettingsRequest(own=True))


async def test_the_reason_of_an_unavailable_model_has_no_address() -> None:
    """Clients see the reason without the address; the log has both."""
    clock = FakeClock()
    lost = Unavailable("cannot connect to upstream 10.1.2.3:8001: refused")
    index = Index("up", ScriptedService((ENTRY,), lost), ttl_s=10, clock=clock)
    await index.entries()
    clock.advance(10)
    with capture_logs() as lines:
        (entry,) = await index.entries()
    assert (DOWN, "cannot connect to upstream ...: refused") == (entry.state, entry.reason)
    assert lost.message in str(lines)
