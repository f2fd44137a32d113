"""Traces of whole gateways, as a collector of OpenTelemetry receives them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.api.start_error import StartError
from gateway.app import Gateway, connect
from gateway.config.load import load_text
from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.tensor import array_tensor
from gateway.settings.units import parse_url
from tests.integration.asking_kit import ask, running, urls
from tests.integration.otlp_kit import Collector, collecting, values

HEAD = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    streams: [{protocol: grps, address: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
telemetry: {otlp: {traces: true}}
"""
BACK = """
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""
A = np.arange(16, dtype=np.int32).reshape(1, 16)
INPUTS = {"INPUT0": A, "INPUT1": A}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", "vendor=1"))
SERVER, CLIENT, INTERNAL = 2, 3, 1


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        use(found, "grpc", monkeypatch)
        yield found


def use(collector: Collector, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.urls[protocol])


def carriers(gateway: Gateway) -> dict[str, str]:
    """Return the URL of each protocol that can carry the context of a trace."""
    (stream,) = (each for name, each in gateway.addresses.items() if "grps" in name)
    return {**urls(gateway, "simple"), "grps.brpc": f"grps+brpc://{stream}"}


def named(collector: Collector, name: str, kind: int) -> list[Any]:
    return [span for span in collector.spans if (span.name, span.kind) == (name, kind)]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_trace_context_crosses_every_protocol(
    protocol: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client, gateway and upstream belong to one trace, whatever their protocols."""
    use(collector, protocol, monkeypatch)
    async with running(HEAD + BACK) as back:
        behind = carriers(back)
        upstreams = "".join(
            f'  {name.replace(".", "-")}: {{url: "{url}"}}\n' for name, url in behind.items()
        )
        matches = "".join(
            f"  - {{match: {{model: {name}}}, targets: [{{upstream: {name.replace('.', '-')}, model: simple}}]}}\n"
            for name in behind
        )
        async with running(f"{HEAD}upstreams:\n{upstreams}routes:\n{matches}") as front:
            for name in behind:
                url = carriers(front)["oip.grpc" if name == "oip.http" else "oip.http"]
                found = await ask(url, name, INPUTS, metadata=PARENT)
                assert (2 * A).tolist() == found["OUTPUT0"].tolist()
    by_id = {span.span_id: span for span in collector.spans}
    for name in behind:
        (server,) = named(collector, f"Infer {name}", SERVER)
        assert (TRACE, SPAN) == (server.trace_id.hex(), server.parent_span_id.hex())
        children = [span for span in collector.spans if span.parent_span_id == server.span_id]
        (client,) = [span for span in children if span.name.startswith("Infer")]
        assert (CLIENT, name) == (client.kind, values(client.attributes)["gateway.protocol"])
        (far,) = [
            span
            for span in collector.spans
            if span.parent_span_id == client.span_id and span.name == "Infer simple"
        ]
        assert (SERVER, name) == (far.kind, values(far.attributes)["gateway.protocol"])
        if name == "grps.brpc":
            assert (f"{0:016}{TRACE[16:]}", "") == (far.trace_id.hex(), far.trace_state)
        else:
            assert (TRACE, "vendor=1") == (far.trace_id.hex(), far.trace_state)
    assert len(by_id) == len(collector.spans)
    assert {"tensor-gateway"} == {each["service.name"] for each in collector.resources}


INSIDE = """
models:
  simple:
    backend: python
    options: {callable: "gateway.backends.examples:simple"}
    signature: {max_batch_size: 8}
    batching: {max_delay: 1s, preferred_sizes: [2]}
  slow: {backend: python, options: {callable: "gateway.backends.examples:slow"}}
  fail: {backend: python, options: {callable: "gateway.backends.examples:fail"}}
pipelines:
  slowly:
    steps:
      one: {model: slow, inputs: {INPUT0: request.ms}}
      two: {model: slow, inputs: {INPUT0: one.OUTPUT0}}
    outputs: {ms: two.OUTPUT0}
routes:
  - {match: {model: slow}, targets: [{model: slow}], in_flight: 1}
  - {match: {model: simple}, targets: [{model: simple}]}
  - {match: {model: fail}, targets: [{model: fail}]}
  - {match: {model: slowly}, targets: [{model: slowly}]}
"""
MS = np.array([20], dtype=np.int32)


def children(collector: Collector, parent: Any) -> list[str]:
    found = [span for span in collector.spans if span.parent_span_id == parent.span_id]
    return [span.name for span in sorted(found, key=lambda span: span.start_time_unix_nano)]


async def test_steps_queues_and_runs_have_spans(collector: Collector) -> None:
    """A pipeline has a span for each step and model; a call that waited has one for its queue."""
    async with running(HEAD + INSIDE) as gateway:
        url = urls(gateway, "simple")["oip.http"]
        await ask(url, "slowly", {"ms": MS})
        await asyncio.gather(*(ask(url, "slow", {"INPUT0": MS}) for _ in range(2)))
    (pipeline,) = named(collector, "Infer slowly", SERVER)
    steps = [span for span in collector.spans if span.name == "step Infer slow"]
    assert ["step Infer slow"] * 2 == children(collector, pipeline)
    assert [["run Infer slow"]] * 2 == [children(collector, step) for step in steps]
    calls = named(collector, "Infer slow", SERVER)
    assert [["queue", "run Infer slow"], ["run Infer slow"]] == sorted(
        children(collector, call) for call in calls
    )
    (queue,) = [span for span in collector.spans if span.name == "queue"]
    assert queue.end_time_unix_nano - queue.start_time_unix_nano >= 10e6


async def test_batch_belongs_to_one_trace_and_links_the_others(collector: Collector) -> None:
    """The merged call has a span; each of its callers has one for its time in the batch."""
    async with running(HEAD + INSIDE) as gateway:
        url = urls(gateway, "simple")["oip.http"]
        await asyncio.gather(*(ask(url, "simple", INPUTS) for _ in range(2)))
    first, second = named(collector, "Infer simple", SERVER)
    (merged,) = [span for span in collector.spans if span.name == "merged Infer simple"]
    if merged.parent_span_id != first.span_id:
        first, second = second, first
    assert ["batch", "merged Infer simple"] == sorted(children(collector, first))
    assert ["batch"] == children(collector, second)
    assert [(second.trace_id, second.span_id)] == [
        (link.trace_id, link.span_id) for link in merged.links
    ]
    assert ["run Infer simple"] == children(collector, merged)
    assert 2 == values(merged.attributes)["gateway.batch.calls"]


async def test_each_attempt_has_a_span_and_failures_have_a_status(collector: Collector) -> None:
    """A retry is a second client span; only server faults make the call's span an error."""
    retry = "policies: {retry: {attempts: 2, on: [unsent, connect_failure]}}\n"
    dead = 'upstreams: {dead: {url: "oip+grpc://127.0.0.1:1"}}\n'
    async with running(HEAD + retry + dead + INSIDE + DEAD_ROUTE) as gateway:
        url = urls(gateway, "simple")["oip.http"]
        for model in ("gone", "fail", "nobody"):
            with pytest.raises(GatewayError):
                await ask(url, model, INPUTS)
    attempts = named(collector, "Infer gone", CLIENT)
    assert 2 == len(attempts)
    expected = {
        "gateway.upstream": "dead",
        "gateway.protocol": "oip.grpc",
        "rpc.system.name": "grpc",
        "server.address": "127.0.0.1",
        "server.port": 1,
        "gateway.model.name": "gone",
        "error.type": "unavailable",
    }
    assert [expected, expected] == [values(span.attributes) for span in attempts]
    found = {}
    for span in (
        span for span in collector.spans if span.kind == SERVER and span.name != "ServerMetadata"
    ):
        attributes = values(span.attributes)
        found[attributes["gateway.model.name"]] = (attributes["error.type"], span.status.code)
    error = 2
    assert {
        "gone": ("unavailable", error),
        "fail": ("invalid_argument", 0),
        "nobody": ("not_found", 0),
    } == found


async def test_spans_have_the_status_that_the_client_got(collector: Collector) -> None:
    """This holds over HTTP and gRPC for replies, model errors and unreadable requests."""
    async with running(HEAD + BACK) as gateway:
        here = urls(gateway, "simple")
        for name in ("oip.http", "oip.grpc", "trtis.http", "graphpipe.http"):
            await ask(here[name], "simple", INPUTS, metadata=PARENT)
        for name in ("oip.http", "oip.grpc"):
            with pytest.raises(GatewayError):
                await ask(here[name], "nobody", INPUTS)
        async with aiohttp.ClientSession(f"http://{gateway.addresses['main.http']}") as session:
            path = "/v2/models/simple/infer?token=hidden"
            async with session.post(path, data=b"{", headers=dict(PARENT)) as response:
                assert 400 == response.status
                request_id = response.headers["x-request-id"]
        async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
            ask_raw = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await ask_raw(b"\xff")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    found = [
        (span.name, values(span.attributes)) for span in collector.spans if span.kind == SERVER
    ]
    statuses = Counter(
        (name, each.get("http.response.status_code") or each.get("rpc.response.status_code"))
        for name, each in found
    )
    assert Counter(
        {
            ("Infer simple", 200): 3,
            ("Infer simple", "OK"): 1,
            ("Infer nobody", 404): 1,
            ("Infer nobody", "NOT_FOUND"): 1,
            ("rejected", 400): 1,
            ("rejected", "INVALID_ARGUMENT"): 1,
        }
    ) == Counter(
        {key: count for key, count in statuses.items() if not key[0].startswith(QUESTIONS)}
    )
    assert {0, 3, 5} == {
        each["rpc.grpc.status_code"] for _, each in found if "rpc.grpc.status_code" in each
    }
    (rejected,) = [span for span in named(collector, "rejected", SERVER) if span.parent_span_id]
    assert (TRACE, SPAN) == (rejected.trace_id.hex(), rejected.parent_span_id.hex())
    attributes = values(rejected.attributes)
    assert attributes.pop("user_agent.original").startswith("Python/")
    assert {
        "gateway.listener": "main",
        "gateway.protocol": "oip.http",
        "gateway.request_id": request_id,
        "client.address": "127.0.0.1",
        "error.type": "invalid_argument",
        "http.response.status_code": 400,
    } == attributes
    assert "hidden" not in str(found)


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_spans_of_transport_rejections_have_the_client_status(
    collector: Collector, transport: str
) -> None:
    """Unknown paths and methods and an invalid head are rejected without a codec."""
    head = HEAD.replace("  - http:", f"  - transport: {transport}\n    http:")
    async with running(head + BACK) as gateway:
        async with (
            aiohttp.ClientSession(f"http://{gateway.addresses['main.http']}") as session,
            session.post("/nowhere", headers=dict(PARENT)) as response,
        ):
            expected = [(response.status, SPAN)]
        if transport == "native":  # aiohttp and grpcio refuse these without a word to the gateway
            host, port = gateway.addresses["main.http"].rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
            line = await reader.readline()
            writer.close()
            expected.append((int(line.split()[1]), ""))
            async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await channel.unary_unary("/no.Service/Method")(b"", metadata=PARENT)
            expected.append((raised.value.code().name, SPAN))
    assert [404, 400, "UNIMPLEMENTED"][: len(expected)] == [status for status, _ in expected]
    found = []
    for span in named(collector, "rejected", SERVER):
        each = values(span.attributes)
        status = each.get("http.response.status_code") or each.get("rpc.response.status_code")
        found.append((status, span.parent_span_id.hex()))
    assert Counter(expected) == Counter(found)


QUESTIONS = ("ServerMetadata", "ServerStatus", "ModelMetadata")
DEAD_ROUTE = "  - {name: gone, match: {model: gone}, targets: [{upstream: dead}]}\n"


async def test_log_line_has_the_trace_id(collector: Collector) -> None:
    """The log line has the trace id, the span has the line's fields, and neither has a payload."""
    with capture_logs() as lines:
        async with running(HEAD + INSIDE) as gateway:
            await ask(urls(gateway, "simple")["oip.http"], "slow", {"INPUT0": MS}, metadata=PARENT)
    (line,) = [line for line in lines if line.get("model") == "slow"]
    assert TRACE == line["trace_id"]
    (span,) = named(collector, "Infer slow", SERVER)
    attributes = values(span.attributes)
    size = attributes.pop("http.request.body.size")
    assert line["request_bytes"] == size
    assert {
        "gateway.protocol": "oip.http",
        "gateway.request_id": line["request_id"],
        "client.address": "127.0.0.1",
        "gateway.model.name": "slow",
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v2/models/slow/infer",
        "gateway.route": line["route"],
        "gateway.target": "local/slow",
    } == attributes


async def test_exported_traces_are_exemplars(collector: Collector) -> None:
    """OpenMetrics has the trace of an exported call in the bucket of its duration."""
    unsampled = (("traceparent", f"00-{'1' * 32}-{SPAN}-00"),)
    async with running(HEAD + INSIDE) as gateway:
        url = urls(gateway, "simple")["oip.http"]
        for metadata in (unsampled, PARENT, unsampled):
            await ask(url, "slow", {"INPUT0": MS}, metadata=metadata)
        page = gateway.metrics.page("application/openmetrics-text")[0].decode()
        plain = gateway.metrics.page("")[0].decode()
    lines = [line for line in page.splitlines() if TRACE in line]
    (line,) = [line for line in lines if 'kind="InferRequest"' in line]
    assert line.startswith("gateway_request_duration_seconds_bucket{")
    assert ("1" * 32 in page, TRACE in plain) == (False, False)


@pytest.mark.parametrize(
    ("setting", "variable", "expected"),
    [
        ("traces_percent: 0", "", 1),
        ("traces_percent: 100", "always_off", 4),
        ("", "always_off", 0),
        ("", "", 4),
    ],
)
async def test_traces_are_sampled(
    setting: str,
    variable: str,
    expected: int,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key has precedence over the variable; a sampled trace of a client always gets spans."""
    if variable:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", variable)
    head = HEAD.replace("traces: true", f"traces: true, {setting}")
    async with running(head + INSIDE) as gateway:
        url = urls(gateway, "simple")["oip.http"]
        for metadata in ((), (), (), PARENT):
            await ask(url, "slow", {"INPUT0": MS}, metadata=metadata)
    assert expected == len(named(collector, "Infer slow", SERVER))


async def test_stream_spans_end_with_the_last_item(collector: Collector) -> None:
    """The spans of the call and of the upstream request are exported for a stream."""
    models = 'models: {repeat: {backend: python, options: {callable: "gateway.backends.examples:repeat_stream"}}}\n'
    async with (
        running(HEAD + models) as back,
        running(
            f'{HEAD}upstreams: {{far: {{url: "oip+grpc://{back.addresses["main.grpc"]}"}}}}\n'
        ) as front,
    ):
        connected = connect(parse_url(urls(front, "repeat")["oip.grpc"]))
        inputs = (array_tensor("IN", np.arange(3, dtype=np.int32)),)
        request = InferRequest(model=ModelRef("repeat"), inputs=inputs)
        items = await connected.service(StreamInferRequest(model=request.model, request=request))
        assert 3 == len([item async for item in items if item.outputs])
        await connected.close()
    (client,) = named(collector, "StreamInfer repeat", CLIENT)
    servers = named(collector, "StreamInfer repeat", SERVER)
    assert 2 == len(servers)
    assert {client.span_id} < {span.parent_span_id for span in servers}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "no exporter 'zipkin' of traces is installed"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "udp", "OTEL_EXPORTER_OTLP_PROTOCOL is 'udp'; expected"),
    ],
)
def test_invalid_environment_variable_raises(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable or its value."""
    monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=expected):
        Gateway(load_text(HEAD + BACK))


def test_without_traces_opentelemetry_is_not_imported() -> None:
    """The packages of OpenTelemetry are optional."""
    text = HEAD.replace("traces: true", "traces: false") + BACK
    code = (
        "import sys; from gateway.app import Gateway; from gateway.config.load import load_text; "
        f"Gateway(load_text({text!r})); "
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'gateway.otlp'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == found.stdout.strip()
