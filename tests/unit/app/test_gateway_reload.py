"""A gateway in this process gives up a replaced configuration, and all that belongs to it."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from time import monotonic

import pytest

from gateway.app import Gateway, StartError
from gateway.config.load import load_text
from gateway.ir.calls import ModelReadyRequest, ServerSwitchRequest
from gateway.ir.context import ModelRef
from tests.unit.app.waiting_models import MAY_LOAD

TEXT = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    streams: [{protocol: grps, address: "127.0.0.1:0"}]
    passthrough: behind
  - {name: other, http: "127.0.0.1:0", default_model: simple}
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 60s}
upstreams: {behind: {url: "oip+http://127.0.0.1:1"}}
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
routes: [{match: {model: simple}, targets: [{model: simple}]}, {targets: [{upstream: behind}]}]
"""
CHANGED = TEXT.replace('127.0.0.1:1"', '127.0.0.1:2"').replace(
    "simple}]}, ", "simple}], timeout: 1s}, "
)


async def test_replaced_entries_are_released() -> None:
    """Only calls in progress keep an entry alive; stop does not wait for `drain` otherwise."""
    gateway = Gateway(load_text(TEXT))
    await gateway.start()
    try:
        for text in (CHANGED, TEXT, CHANGED):
            entries = gateway._graph.entries.values()
            references: list[weakref.ref[object]] = [
                weakref.ref(entry.service) for entry in entries
            ]
            references += [weakref.ref(each) for e in entries for each in e.http_clients.values()]
            del entries
            await gateway.reload(load_text(text))
            assert [None] * len(references) == [reference() for reference in references]
    finally:
        start = monotonic()
        await gateway.stop()
        assert monotonic() - start < 30  # it does not wait for `drain`


async def test_a_reload_keeps_unchanged_objects() -> None:
    """Only objects with a changed configuration are replaced."""
    gateway = Gateway(load_text(TEXT))
    await gateway.start()
    try:
        before = gateway._graph.parts.current
        changes = await gateway.reload(load_text(CHANGED))
        after = gateway._graph.parts.current
    finally:
        await gateway.stop()
    assert changes == {
        "added": [],
        "replaced": ["route route-1", "route route-2", "upstream behind"],
        "removed": [],
    }
    assert before["model", "simple"][1] is after["model", "simple"][1]
    assert before["limit", "route-1"][1] is after["limit", "route-1"][1]
    assert before["upstream", "behind"][1] is not after["upstream", "behind"][1]


async def test_a_failed_reload_keeps_the_current_models() -> None:
    """The models of the failed configuration are unloaded; the current ones keep serving."""
    gateway = Gateway(load_text(TEXT))
    await gateway.start()
    try:
        bad = TEXT.replace(
            "models: {", 'models: {bad: {backend: python, options: {callable: "no:no"}}, '
        )
        with pytest.raises(StartError, match="no"):
            await gateway.reload(load_text(bad))
        assert await gateway.service(ModelReadyRequest(model=ModelRef("simple"))) is True
    finally:
        await gateway.stop()
    with pytest.raises(StartError, match="the gateway is stopping"):
        await gateway.reload(load_text(TEXT))


async def test_offline_state_survives_a_reload() -> None:
    """A client has set it, and a changed file does not reset it."""
    gateway = Gateway(load_text(TEXT))
    await gateway.start()
    try:
        await gateway.service(ServerSwitchRequest(is_online=False, is_allowed=True))
        await asyncio.gather(gateway.reload(load_text(CHANGED)))
        assert await gateway.ready() is False
    finally:
        await gateway.stop()


async def test_a_reload_reads_the_file_of_a_header_again(tmp_path: Path) -> None:
    """An upstream whose key is in a file is replaced when the key is another one."""
    key = tmp_path / "key"
    key.write_text("old")
    text = TEXT.replace('127.0.0.1:1"', '127.0.0.1:1", headers: {x-key: "${file:key}"}')
    gateway = Gateway(load_text(text, directory=tmp_path))
    await gateway.start()
    try:
        unchanged = await gateway.reload(load_text(text, directory=tmp_path))
        key.write_text("new")
        changes = await gateway.reload(load_text(text, directory=tmp_path))
    finally:
        await gateway.stop()
    assert [] == unchanged["replaced"]
    assert "upstream behind" in changes["replaced"]


async def test_a_reload_ends_with_its_timeout() -> None:
    """A model that does not load in time changes nothing, and the reason names the key."""
    gateway = Gateway(load_text(TEXT))
    await gateway.start()
    try:
        late = "{backend: python, options: {callable: 'tests.unit.app.waiting_models:Late'}}"
        text = TEXT.replace("models: {", f"models: {{late: {late}, ").replace(
            "drain: 60s", "drain: 60s, reload: {timeout: 20ms}"
        )
        with pytest.raises(StartError, match=r"lifecycle\.reload\.timeout"):
            await gateway.reload(load_text(text))
        assert await gateway.service(ModelReadyRequest(model=ModelRef("simple"))) is True
    finally:
        MAY_LOAD.set()
        await gateway.stop()


async def test_an_endpoint_that_is_set_aside_has_a_metric() -> None:
    """Its share is that of the status; the alert of an operator has something to read."""
    text = 'version: 1\nlisteners: [{http: "127.0.0.1:0"}]\nupstreams: {a: {url: "oip+http://h:1"}}'
    gateway = Gateway(load_text(text))
    (member,) = gateway._graph.upstreams["a"].members
    member.endpoint.share.value = 1 / 16
    page = (await gateway.page(""))[0].decode()
    assert 'gateway_upstream_share{endpoint="h:1",upstream="a"} 0.0625\n' in page
