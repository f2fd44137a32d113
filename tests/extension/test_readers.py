"""No protocol, carrier or form of a request goes around a layer that reads tensors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import grpc
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.api.layer import Layer
from gateway.app import Gateway
from gateway.app.layers import LAYERS
from gateway.cli.validation.config_warnings import warnings
from gateway.config.load import load_text
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.datatypes import Datatype
from gateway.schema import open_inference_pb2 as pb
from gateway.transports.choice import grpc_client, http_client
from gateway.transports.contract import ClientLimits
from gateway.transports.stream.client import StreamClient
from tests.extension.readers import installed
from tests.integration.asking_kit import running
from tests.integration.otlp_kit import collecting
from tests.matrix.clients import CLIENTS, Client, Refused
from tests.properties.registered import REGISTERED

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

MODEL = """
models:
  same:
    backend: python
    options: {callable: "gateway.backends.examples:identity_fp32"}
    signature:
      inputs: [{name: INPUT0, datatype: FP32, shape: [-1, -1]}]
      outputs: [{name: OUTPUT0, datatype: FP32, shape: [-1, -1]}]
  flat:
    backend: python
    options: {callable: "gateway.backends.examples:identity_fp32"}
    signature:
      inputs: [{name: INPUT0, datatype: FP32, shape: [-1]}]
      outputs: [{name: OUTPUT0, datatype: FP32, shape: [-1]}]
"""
LISTENER = """
version: 1
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    default_model: same
    streams:
      - {protocol: graphpipe, address: "127.0.0.1:0"}
      - {protocol: grps, address: "127.0.0.1:0"}
"""
UPSTREAM = "upstreams: {server: {url: URL}}\n"
SHARED = MODEL.replace("    backend: python\n", "    cache: {max_age: 1s}\n")
SHARED = "".join(line for line in SHARED.splitlines(keepends=True) if "options" not in line)
PIPELINES = MODEL.replace("same:", "same_:").replace("flat:", "flat_:") + "pipelines:\n"
for name, shape in (("same", "[-1, -1]"), ("flat", "[-1]")):
    PIPELINES += f"""  {name}:
    steps: {{{name}_: {{inputs: {{INPUT0: request.INPUT0}}}}}}
    outputs: {{OUTPUT0: {name}_.OUTPUT0}}
    signature:
      inputs: [{{name: INPUT0, datatype: FP32, shape: {shape}}}]
      outputs: [{{name: OUTPUT0, datatype: FP32, shape: {shape}}}]
"""
PLACES = {
    "listener": ("listener", MODEL),
    "listener before an upstream": ("listener", UPSTREAM),
    "route": ("route", MODEL),
    "route before an upstream": ("route", UPSTREAM),
    "target": (
        "target",
        MODEL
        + "routes: [{targets: [{model: same}], match: {model: same}}, {targets: [{model: flat}]}]\n",
    ),
    "upstream": ("upstream", UPSTREAM),
    "endpoint": ("endpoint", UPSTREAM),
    "endpoint of TensorRT": ("endpoint", UPSTREAM.replace("URL", "TRTIS")),
    "endpoint of TensorFlow": ("endpoint", UPSTREAM.replace("URL", "TFS")),
    "model": ("model", MODEL),
    "shared model": ("model", SHARED + UPSTREAM),
    "pipeline": ("pipeline", PIPELINES),
}
"""A chain, and what stands behind the listener so that calls pass it."""

Rows = list[list[float]]
FEW, MANY, NOT_FINITE = [[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0, 4.0]], [[1.0, float("nan"), 3.0]]


@dataclass(frozen=True)
class Form:
    """A form of a request that no client of the matrix has."""

    name: str
    path: str
    make: Any
    content_type: str = "application/json"

    def body(self, rows: Rows) -> bytes:
        made = self.make(rows)
        return made if isinstance(made, bytes) else json.dumps(made).encode()


def csv(rows: Rows) -> bytes:
    lines = [",".join(map(str, range(len(rows[0])))), *(",".join(map(str, row)) for row in rows)]
    return "\n".join(lines).encode()


def flat(rows: Rows) -> dict[str, Any]:
    return {"shape": [len(rows), len(rows[0])], "values": [each for row in rows for each in row]}


def split(rows: Rows) -> dict[str, Any]:
    return {"columns": [str(at) for at in range(len(rows[0]))], "data": rows}


FLAT = "/v2/models/flat"
FORM = "application/x-www-form-urlencoded"
FORMS = (
    Form("oip generate", f"{FLAT}/generate", lambda rows: {"INPUT0": rows[0]}),
    Form("oip raw", f"{FLAT}/infer", lambda rows: np.array(rows, "<f4").tobytes(), "raw"),
    Form("tfs instances", "/v1/models/same:predict", lambda rows: {"instances": rows}),
    Form("tfs inputs", "/v1/models/same:predict", lambda rows: {"inputs": rows}),
    Form("tfs named", "/v1/models/same:predict", lambda rows: {"inputs": {"INPUT0": rows}}),
    Form(
        "tfs objects",
        "/v1/models/same:predict",
        lambda rows: {"instances": [{"INPUT0": row} for row in rows]},
    ),
    Form("mlflow inputs", "/invocations", lambda rows: {"inputs": rows}),
    Form("mlflow instances", "/invocations", lambda rows: {"instances": rows}),
    Form("mlflow split", "/invocations", lambda rows: {"dataframe_split": split(rows)}),
    Form("mlflow csv", "/invocations", csv, "text/csv"),
    Form("seldon ndarray", "/api/v1.0/predictions", lambda rows: {"data": {"ndarray": rows}}),
    Form("seldon tensor", "/api/v1.0/predictions", lambda rows: {"data": {"tensor": flat(rows)}}),
    Form(
        "seldon form",
        "/predict",
        lambda rows: b"json=" + json.dumps({"data": {"ndarray": rows}}).encode(),
        FORM,
    ),
    Form("torchserve", "/predictions/same", lambda rows: rows[0]),
    Form("torchserve named", "/predictions/same", lambda rows: {"INPUT0": rows[0]}),
    Form(
        "torchserve form",
        "/predictions/same",
        lambda rows: b"data=" + json.dumps(rows[0]).encode(),
        FORM,
    ),
)


async def post(
    front: Gateway, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, str]:
    url = f"http://{front.addresses['main.http']}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers) as response,
    ):
        return response.status, repr(await response.read())


async def send(front: Gateway, form: Form, rows: Rows) -> tuple[int, str]:
    headers = {"Content-Type": form.content_type}
    if form.content_type == "raw":
        headers = {"Inference-Header-Content-Length": "0"}
    return await post(front, form.path, form.body(rows), headers)


async def speak(front: Gateway, client: Client, rows: npt.ArrayLike) -> bool:
    """Send rows as a client of the matrix; return whether they came back."""
    registered, addresses = REGISTERED[client.codec], front.addresses
    if registered.carrier == "http":
        transport: Any = http_client("native", addresses["main.http"], ClientLimits(), tls=None)
    elif registered.carrier == "grpc":
        transport = grpc_client("native", addresses["main.grpc"], ClientLimits(), tls=None)
    else:
        binding = registered.binding
        name = next(each for each in addresses if f".{registered.spec.name}." in each)
        framer = partial(binding.client_framer, DEFAULT_LIMITS)
        transport = StreamClient(
            addresses[name], framer, ClientLimits(), ordered=binding.is_ordered
        )
    sent = np.array(rows, "<f4")
    try:
        found = await client.infer(transport, ModelRef("same"), {"INPUT0": (Datatype.FP32, sent)})
    except (Refused, GatewayError, KeyError):
        return False
    finally:
        await transport.close()
    (array,) = found.values()
    np.testing.assert_array_equal(sent, array)
    return True


@pytest.fixture(scope="module", autouse=True)
def layers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the layers, of which each test configures one at most."""
    with installed(tmp_path_factory.mktemp("site")):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[dict[str, str]]:
    """Run a server of every protocol; return its URLs."""
    gateway = Gateway(load_text(LISTENER + MODEL))
    await gateway.start()
    grpc = gateway.addresses["main.grpc"]
    found = {
        "URL": f"oip+grpc://{grpc}",
        "TRTIS": f"trtis+grpc://{grpc}",
        "TFS": f"tfs+grpc://{grpc}",
    }
    try:
        yield found
    finally:
        await gateway.stop()


@asynccontextmanager
async def before(server: Mapping[str, str], text: str) -> AsyncIterator[Gateway]:
    for name, url in server.items():
        text = text.replace(f"url: {name}}}", f'url: "{url}"}}')
    async with running(text) as front:
        yield front


NOT_CARRIED = {("endpoint of TensorRT", "oip raw")}  # the server's shapes have a batch axis
LIMITS = {"shapes": ("{elements: 3, names: 1}", MANY), "values": ("{finite: 1}", NOT_FINITE)}


@pytest.mark.parametrize("needs", LIMITS)
@pytest.mark.parametrize("place", PLACES)
async def test_a_layer_sees_tensors_of_every_form(
    server: Mapping[str, str], place: str, needs: str
) -> None:
    """What the layer must refuse is refused in each form, and what it allows comes back."""
    chain, behind = PLACES[place]
    limits, refused = LIMITS[needs]
    text = f"{LISTENER}policies: {{refuse_{chain}_{needs}: {limits}}}\n{behind}"
    async with before(server, text) as front:
        for form in FORMS:
            if (place, form.name) in NOT_CARRIED:
                continue
            status, shown = await send(front, form, FEW)
            assert 200 == status, (form.name, shown)
            status, shown = await send(front, form, refused)
            assert status in ({413} if refused is MANY else {400, 403, 422}), (form.name, shown)
        for client in CLIENTS:
            assert await speak(front, client, FEW), client.name
            assert not await speak(front, client, refused), client.name


UNREAD = (
    Form("torchserve explanation", "/explanations/same", lambda rows: rows[0]),
    Form("tfs explanation", "/v1/models/same:explain", lambda rows: {"instances": rows}),
    Form("oip opaque", "/v2/models/same/custom", lambda rows: {"inputs": rows}),
    Form("seldon feedback", "/api/v1.0/feedback", lambda rows: {"request": {"data": rows}}),
)
OPTIONS = "options: {oip: {opaque: true}, seldon: {feedback: forward}}"


@pytest.mark.parametrize("needs", ["shapes", "values", "nothing"])
@pytest.mark.parametrize("place", ["listener", "route before an upstream", "upstream", "endpoint"])
async def test_unread_calls_do_not_pass_a_layer_that_reads(
    server: Mapping[str, str], place: str, needs: str
) -> None:
    """Calls that are forwarded as they are get an error that names the layer, but questions pass."""
    chain, behind = PLACES[place]
    listener = LISTENER.replace("default_model: same", f"default_model: same\n    {OPTIONS}")
    text = f"{listener}policies: {{refuse_{chain}_{needs}: {{elements: 9}}}}\n{behind}"
    async with before(server, text) as front:
        for form in UNREAD:
            status, shown = await send(front, form, FEW)
            assert status >= 400, (form.name, shown)
            assert ("reads tensors" in shown) is (needs != "nothing"), (form.name, shown)
        url = f"http://{front.addresses['main.http']}"
        for path in ("/v2/models/same/custom", "/send-feedback"):
            async with aiohttp.ClientSession() as session, session.get(url + path) as response:
                assert "reads tensors" not in repr(await response.read())
        feedback = "/send-feedback?json=%7B%22request%22%3A%7B%7D%7D"
        async with aiohttp.ClientSession() as session, session.get(url + feedback) as response:
            shown = repr(await response.read())
            assert ("reads tensors" in shown) is (needs != "nothing"), shown


BIG = np.ones((1, 800_000), "<f4")


@pytest.mark.parametrize("place", ["listener before an upstream", "route", "endpoint"])
@pytest.mark.parametrize("needs", ["shapes", "values"])
async def test_a_body_that_is_still_arriving_was_an_error_for_layers_that_read_it(
    server: Mapping[str, str], place: str, needs: str
) -> None:
    """A binary body of 3.2 MB comes back, and is refused where it must be."""
    chain, behind = PLACES[place]
    limits = {"shapes": "{elements: 900000}", "values": "{finite: 1}"}[needs]
    wrong = BIG.copy()
    wrong[0, -1] = np.nan
    refused = {"shapes": np.ones((2, 500_000), "<f4"), "values": wrong}[needs]
    text = f"{LISTENER}policies: {{refuse_{chain}_{needs}: {limits}}}\n{behind}"
    binary = next(each for each in CLIENTS if each.name == "oip.http-binary")
    async with before(server, text) as front:
        assert await speak(front, binary, BIG)
        assert not await speak(front, binary, refused)


async def test_each_message_of_a_session_passes_the_layer(
    server: Mapping[str, str],
) -> None:
    """Of the messages of one stream those are refused that the layer must refuse."""
    text = f"{LISTENER}policies: {{refuse_route_values: {{finite: 1}}}}\n{MODEL}"
    messages: list[pb.ModelInferRequest] = []
    for rows in (FEW, NOT_FINITE, MANY):
        message = pb.ModelInferRequest(model_name="same", id=str(len(messages)))
        array = np.array(rows, "<f4")
        message.inputs.add(name="INPUT0", datatype="FP32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
        messages.append(message)
    async with (
        before(server, text) as front,
        grpc.aio.insecure_channel(front.addresses["main.grpc"]) as channel,
    ):
        infer = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        replies = [reply async for reply in infer(iter(messages))]
    found = {bool(reply.error_message): reply.error_message for reply in replies}
    assert [False, False, True] == sorted(bool(reply.error_message) for reply in replies)
    assert "expected finite numbers" in found[True]


RULE = "security: {{rules: [{{clients: anonymous, operations: all, {}}}]}}\n"
QUOTA = "quotas: {{small: {{match: {{clients: anonymous}}, unit: {}, limit: {}/day}}}}\n"
OWN = {
    "rules": RULE.format("max_elements: 3"),
    "rules in bytes": RULE.format("max_bytes: 12"),
    "quotas": QUOTA.format("elements", 3),
    "quotas in bytes": QUOTA.format("bytes", 12),
}
SAME = {
    "Cache": SHARED + UPSTREAM,
    "Batch": SHARED.replace("cache: {max_age: 1s}", "batching: {max_batch_size: 4}") + UPSTREAM,
    "none": UPSTREAM,
}
"""Layers by which a reply could be that of another request."""

REFUSES = {"Authorise": {"rules", "rules in bytes"}, "ApplyQuotas": {"quotas", "quotas in bytes"}}
"""Our layers that refuse by the tensors of a request, and their limits in `OWN`."""

ADDS = {
    "BufferBody", "Classify", "Complete", "NormalizeOutputs", "Rename", "SharedMemory",
    "Signatures", "TransformTensors",
}  # fmt: skip
"""Those that change or complete tensors; codecs rely on them, so that the matrix tries each form."""

READ_NOTHING = {
    "AdaptiveConcurrency", "AskAuthoriser", "AskExternal", "AskInOwnForm", "AttemptTimeout",
    "CallLimits", "ConfirmUnload", "CountModelCalls", "CountModels", "FairShare", "ForwardHeaders", "Hedge",
    "LimitSequences", "ModelConfigurationLayer", "Observe", "OwnRegions", "OwnSequences",
    "Prioritize", "RefreshModelIndex", "RejectSequences", "Residency", "RollingLoad", "SampleCalls",
    "ServerStatusLayer", "ShedLoad", "TraceAttempt", "TraceCall", "TraceInside", "UnknownModels",
    "UsageStatistics",
}  # fmt: skip
"""Those that decide by the model, the client, headers, the time or the load."""


async def test_each_of_our_layers_is_tried_with_tensors_or_reads_none() -> None:
    """A new layer of the table needs its place here, with a case if it refuses or keeps tensors."""
    own = {row.name for rows in LAYERS.values() for row in rows if isinstance(row, Layer)}
    groups = [set(REFUSES), SAME.keys() - {"none"}, ADDS, READ_NOTHING]
    assert own == set().union(*groups)
    assert len(own) == sum(map(len, groups))
    assert OWN.keys() == set().union(*REFUSES.values())


@pytest.mark.parametrize("policy", OWN)
async def test_no_form_escapes_our_own_limits(server: Mapping[str, str], policy: str) -> None:
    """What is larger than a rule or a quota allows is refused in each form, by one element."""
    async with before(server, LISTENER + OWN[policy] + UPSTREAM) as front:
        for form in FORMS:
            status, shown = await send(front, form, MANY)
            assert status in {403, 413, 429}, (form.name, shown)
        for client in CLIENTS:
            assert not await speak(front, client, MANY), client.name


@pytest.mark.parametrize("layer", SAME)
async def test_no_form_gets_the_reply_of_another_request(
    server: Mapping[str, str], layer: str
) -> None:
    """Requests that differ in one element have replies of their own, twice, in each form."""
    other = [[1.0, 2.0, 4.0]]
    async with before(server, LISTENER + SAME[layer]) as front:
        for form in FORMS:
            for rows in (FEW, other, FEW):
                status, shown = await send(front, form, rows)
                assert (200, True) == (status, answers(shown, rows)), (form.name, shown)
        for client in CLIENTS:
            for rows in (FEW, other, FEW):
                assert await speak(front, client, rows), client.name


def answers(shown: str, rows: Rows) -> bool:
    """Return whether a body has the last element of rows, and not that of the others."""
    last, not_last = ("4.0", "3.0") if rows[0][-1] == 4.0 else ("3.0", "4.0")
    raw = repr(np.float32(rows[0][-1]).tobytes())[2:-1]
    return (last in shown and not_last not in shown) or raw in shown


async def test_unread_calls_had_no_size_for_rules(server: Mapping[str, str]) -> None:
    """It counts with the bytes of its body."""
    listener = LISTENER.replace("default_model: same", f"default_model: same\n    {OPTIONS}")
    async with before(server, listener + OWN["rules"] + UPSTREAM) as front:
        for form in UNREAD:
            status, shown = await send(front, form, MANY)
            assert status in {403, 413}, (form.name, shown)


async def answer(request: web.Request) -> web.Response:
    """Answer as a KServe does, as far as a gateway asks."""
    if request.path.endswith("/predict") or request.path.endswith(":predict"):
        return web.json_response({"predictions": ["of the server"]})
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}
    model = {
        "name": "same",
        "versions": [],
        "platform": "",
        "inputs": [tensor],
        "outputs": [tensor],
    }
    return web.json_response(
        model if "models" in request.path else {"name": "kserve", "version": "1"}
    )


@pytest.mark.parametrize("has_layer", [True, False])
async def test_a_passthrough_went_around_layers_that_read_tensors(
    has_layer: bool,
) -> None:
    """The requests of KServe's first protocol are decoded while such a layer is configured."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    kserve = TestServer(app)
    await kserve.start_server()
    text = LISTENER.replace("default_model: same", "default_model: same\n    passthrough: server")
    text += f"upstreams: {{server: {{url: 'oip+http://127.0.0.1:{kserve.port}'}}}}\n"
    if has_layer:
        text += "policies: {refuse_route_shapes: {elements: 3}}\n"
    form = next(each for each in FORMS if each.name == "tfs instances")
    try:
        async with before({}, text) as front:
            assert 200 == (await get(front, "/v2/models/same"))[0]
            status, shown = await send(front, form, MANY)
            assert (413 if has_layer else 200) == status, shown
    finally:
        await kserve.close()


async def get(front: Gateway, path: str) -> tuple[int, str]:
    url = f"http://{front.addresses['main.http']}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, repr(await response.read())


async def test_paths_around_a_layer_are_warned_of() -> None:
    """`gateway validate` warns of a passthrough with paths for POST."""
    text = LISTENER.replace(
        "default_model: same",
        "default_model: same\n    passthrough: {upstream: server, post: ['/v1/*']}",
    )
    text += "upstreams: {server: {url: 'oip+http://127.0.0.1:9'}}\n"
    for policies, count in (("", 0), ("policies: {refuse_route_shapes: {elements: 3}}\n", 1)):
        found = [str(each) for each in warnings(load_text(text + policies))]
        assert count == len([each for each in found if "pass it unread" in each]), found


@pytest.mark.parametrize("place", ["listener", "route before an upstream", "upstream", "model"])
async def test_a_layer_makes_a_span_inside_that_of_the_call(
    server: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The spans of the inner chain are children of the span of the layer."""
    chain, behind = PLACES[place]
    text = f"{LISTENER}telemetry: {{otlp: {{traces: true}}}}\n"
    text += f"policies: {{refuse_{chain}_shapes: {{elements: 3}}}}\n{behind}"
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.urls["grpc"])
        async with before(server, text) as front:
            assert 200 == (await send(front, FORMS[2], FEW))[0]
            assert 413 == (await send(front, FORMS[2], MANY))[0]
    spans = {span.span_id: span for span in collector.spans}
    own = [span for span in spans.values() if span.name == "look up"]
    assert [{"table": "limits"}] * 2 == [
        {each.key: each.value.string_value for each in span.attributes if each.key == "table"}
        for span in own
    ]
    assert all(span.parent_span_id in spans for span in own)
    parents = [span.parent_span_id for span in spans.values()]
    assert 1 == sum(span.span_id in parents for span in own)
