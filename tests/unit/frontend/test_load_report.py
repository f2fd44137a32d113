"""LoadReportingFrontend: the load in responses, in the form that the request names."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.frontend.load_report import Load, LoadReportingFrontend
from gateway.ir.errors import GatewayError
from gateway.processes.process import ProcessUsage
from gateway.processes.worker_slot import SINGLE_PROCESS
from gateway.wire.frontend import ServerFrontend
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.fakes import FakeClock

LOAD = Load(0.5, 0.25, {"queue": 3.0})
# cpu_utilization 1, mem_utilization 2, and an entry of named_metrics 8. Source: the schema of ORCA.
MESSAGE = (
    b"\x09" + struct.pack("<d", 0.5)
    + b"\x11" + struct.pack("<d", 0.25)
    + b"\x42\x10\x0a\x05queue\x11" + struct.pack("<d", 3.0)
)  # fmt: skip
TEXT = "TEXT cpu_utilization=0.5,mem_utilization=0.25,named_metrics.queue=3"
JSON = 'JSON {"cpu_utilization":0.5,"mem_utilization":0.25,"named_metrics":{"queue":3.0}}'
BASE64 = base64.b64encode(MESSAGE).decode()


class Inner(ServerFrontend[Any, Any]):
    """Replies once, or twice to a request for a stream."""

    def __init__(self, response: Any, *, streams: bool = False) -> None:
        self.response = response
        self.streams = streams

    async def __call__(self, wire: Any, /) -> AsyncGenerator[Any, None]:
        yield self.response
        yield self.response

    async def handle(self, wire: Any, /) -> Any:
        return self(wire) if self.streams else self.response

    def reject(self, error: GatewayError, /) -> Any:
        return self.response


def http(form: str | None) -> HttpRequest:
    headers = () if form is None else (("Endpoint-Load-Metrics-Format", form),)
    return HttpRequest("POST", "/", "", Headers(headers))


async def reply(response: Any, request: Any) -> Any:
    """Return the single response to a request."""
    return await reporting(response).handle(request)


def reporting(response: Any, **options: Any) -> LoadReportingFrontend[Any, Any]:
    return LoadReportingFrontend(Inner(response, **options), lambda: LOAD)


@pytest.mark.parametrize(
    ("form", "header"),
    [
        ("TEXT", ("endpoint-load-metrics", TEXT)),
        ("json", ("endpoint-load-metrics", JSON)),
        ("BIN", ("endpoint-load-metrics-bin", BASE64)),
    ],
)
async def test_http_responses_have_a_header(form: str, header: tuple[str, str]) -> None:
    """The response is the same but for it."""
    response = HttpResponse(200, Headers((("a", "b"),)), (b"x",))
    found = await reply(response, http(form))
    assert (("a", "b"), header) == found.headers.pairs
    assert (200, (b"x",)) == (found.status, found.body)


@pytest.mark.parametrize("form", [None, "", "XML"])
async def test_others_have_none(form: str | None) -> None:
    """A request without a known form gets the response itself."""
    response = HttpResponse(200, Headers(()), ())
    assert response is await reporting(response).handle(http(form))


@pytest.mark.parametrize(
    ("form", "pair"),
    [
        ("TEXT", ("endpoint-load-metrics", TEXT)),
        ("JSON", ("endpoint-load-metrics", JSON)),
        ("BIN", ("endpoint-load-metrics-bin", MESSAGE)),
    ],
)
async def test_grpc_responses_have_trailers(form: str, pair: tuple[str, str | bytes]) -> None:
    """The binary form is the message itself; the carrier encodes it."""
    request = GrpcRequest("/s/m", metadata=(("endpoint-load-metrics-format", form),))
    found = await reply(GrpcResponse((b"x",), metadata=(("a", "b"),)), request)
    assert (("a", "b"), pair) == found.metadata


async def test_a_stream_has_it_once() -> None:
    """The first response has the header, as it has the request id."""
    handled = await reporting(HttpResponse(200, Headers(()), ()), streams=True).handle(http("TEXT"))
    found = [each.headers.pairs async for each in handled]
    assert [(("endpoint-load-metrics", TEXT),), ()] == found


def test_usage_is_measured_twice_a_second_at_most() -> None:
    """The part of the cores that the process used since the measurement before."""
    clock, cpu = FakeClock(), [0.0]
    usage = ProcessUsage(SINGLE_PROCESS, lambda: 7.0, clock, lambda: cpu[0])
    clock.advance(1.0)
    cpu[0] = 1.0
    first = usage()
    assert first.cpu > 0
    assert {"queue": 7.0} == first.named
    assert 0 < first.memory < 1
    cpu[0] = 100.0
    assert first.cpu == usage().cpu
