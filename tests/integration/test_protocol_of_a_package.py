"""A protocol that only an entry point names, as a listener and an upstream use it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from gateway import registry
from gateway.api.protocol import Codec, HttpBinding, Options, ProtocolSpec
from gateway.app import check, connect
from gateway.config.load import load_text
from gateway.ir.calls import Call, ServerLiveRequest
from gateway.ir.context import Context, Need
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.settings.units import parse_url
from gateway.wire.http import HttpRequest, HttpResponse
from tests.integration.asking_kit import running

CONFIG = """version: 1
listeners: [{http: "127.0.0.1:0"}]
upstreams: {up: {url: "toy+http://127.0.0.1:9"}}
"""


class ToyCodec(Codec[HttpRequest, HttpResponse]):
    """A protocol with one question."""

    name = "toy.http"
    needs: frozenset[Need] = frozenset()

    def decode_call(self, _wire: HttpRequest, _request_id: str = "", /) -> Call[Any]:
        return ServerLiveRequest(context=Context(self.name))

    def encode_reply(self, _call: Call[Any], reply: Any, /) -> HttpResponse:
        return HttpResponse(200, body=(b"toy lives" if reply else b"toy sleeps",))

    def encode_error(self, _call: Call[Any] | None, error: GatewayError, /) -> HttpResponse:
        return HttpResponse(500, body=(error.message.encode(),))

    def encode_call(self, _call: Call[Any], /) -> HttpRequest:
        return HttpRequest("GET", "/toy/live")

    def decode_reply(self, _call: Call[Any], wire: HttpResponse, /) -> Any:
        return b"toy lives" == b"".join(wire.body)


def toy(_limits: MessageLimits, _options: Options) -> ToyCodec:
    return ToyCodec()


SPEC = ProtocolSpec(
    name="toy",
    title="Toy",
    page="https://toy.example",
    http=HttpBinding(codec=toy, prefixes=("/toy",)),
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Return the entry points of protocols, for a test to change."""
    entries = [EntryPoint("toy", f"{__name__}:SPEC", "gateway.protocols")]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        found = entries if group == "gateway.protocols" else []
        return [each for each in found if name in (None, each.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry.protocol_names.cache_clear()
    yield entries
    registry.protocol_names.cache_clear()


async def test_a_listener_serves_the_protocol_of_a_package(installed: list[EntryPoint]) -> None:
    """A listener without `protocols` serves it, and an upstream of it reads the reply."""
    assert ["toy"] == [entry.name for entry in installed]
    assert [] == check(load_text(CONFIG))
    async with running(CONFIG) as gateway:
        connected = connect(parse_url(f"toy+http://{gateway.addresses['main.http']}"))
        try:
            assert await connected.service(ServerLiveRequest(context=Context()))
        finally:
            await connected.close()


def test_without_the_package_its_upstream_is_refused() -> None:
    """The check of the registry finds the unknown name, and lists the others."""
    (problem,) = check(load_text(CONFIG))
    expected = f"unknown protocol 'toy'; expected one of {', '.join(sorted(registry.PROTOCOLS))}"
    assert ("upstreams.up.url", expected) == (problem.path, problem.message)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere:SPEC", "cannot import 'nowhere': No module named 'nowhere'"),
        ("gateway.registry:PROTOCOLS", "'toy' is a dict; expected a ProtocolSpec"),
        ("gateway.protocols.oip:SPEC", "is the protocol 'oip'; expected equal names"),
    ],
)
def test_a_package_without_its_protocol_is_reported(
    installed: list[EntryPoint], spec: str, message: str
) -> None:
    """The problem names the listener that would serve it, and the cause."""
    installed[:] = [EntryPoint("toy", spec, "gateway.protocols")]
    text = CONFIG.replace("toy+", "")
    (problem,) = check(load_text(text))
    assert "listeners[0]" == problem.path
    assert message in problem.message
