"""Rules over every carrier: who may not call gets 403 in the protocol's form, and lists nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import ClientSession
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.app import Gateway, connect
from gateway.config.load import load_text
from gateway.ir.calls import (
    Call,
    ModelMetadataRequest,
    ModelStatisticsRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.schema import open_inference_pb2 as oip
from gateway.settings.units import parse_url
from tests.integration.access_kit import exchange
from tests.integration.asking_kit import ask, running, urls

CONFIG = """\
version: 1
listeners:
  - name: main
    http: 127.0.0.1:0
    grpc: 127.0.0.1:0
    default_model: open
    streams:
      - {protocol: grps, address: "127.0.0.1:0"}
      - {protocol: graphpipe, address: "127.0.0.1:0"}
    options:
      oip: {repository_index: true, statistics: gateway}
      trtis: {repository_index: true}
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s}
models:
  open: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  opened: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
  closed: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
security:
  rules: RULES
"""
ALLOWED = '[{name: open, clients: anonymous, operations: all, models: "open*"}]'
INPUTS = {
    "INPUT0": np.arange(16, dtype=np.int32).reshape(1, 16),
    "INPUT1": np.ones((1, 16), dtype=np.int32),
}


def config(rules: str = ALLOWED) -> str:
    """Return a configuration with *rules*."""
    return CONFIG.replace("RULES", rules)


async def outcome(gateway: Gateway, name: str, model: str) -> str:
    """Infer over one protocol and carrier; return "ok", or the code of the error."""
    try:
        await ask(all_urls(gateway, model)[name], model, INPUTS)
    except GatewayError as error:
        return error.code.value
    return "ok"


def all_urls(gateway: Gateway, model: str) -> dict[str, str]:
    """Return a URL of each protocol and carrier, those of streams included."""
    streams = {
        "grps.brpc": f"grps+brpc://{gateway.addresses['main.grps.brpc']}",
        "graphpipe.tcp": f"graphpipe+tcp://{gateway.addresses['main.graphpipe.tcp']}",
    }
    return {**urls(gateway, model), **streams}


NAMED = ["oip.http", "oip.grpc", "trtis.http", "trtis.grpc", "graphpipe.http", "grps.http"]
NAMED += ["grps.grpc", "grps.brpc"]


@pytest.mark.parametrize("name", NAMED)
async def test_a_rule_decides_on_every_carrier(name: str) -> None:
    """A model of the rule is served; another one is refused, whether or not it exists."""
    async with running(config()) as gateway:
        assert await outcome(gateway, name, "open") == "ok"
        assert await outcome(gateway, name, "opened") == "ok"
        denied = await outcome(gateway, name, "closed")
        assert denied == await outcome(gateway, name, "nothing")
        assert denied in {"forbidden", "unavailable"}  # TensorRT v1 has one for both


async def test_the_default_model_of_a_stream_counts() -> None:
    """A GraphPipe stream names no model: the one of its listener decides."""
    async with running(config()) as gateway:
        assert await outcome(gateway, "graphpipe.tcp", "open") == "ok"
    async with running(config(ALLOWED.replace("open*", "closed"))) as gateway:
        assert await outcome(gateway, "graphpipe.tcp", "open") == "forbidden"


async def reply_of(gateway: Gateway, url: str, call: Call[Any]) -> Any:
    """Ask over *url* as an upstream is asked."""
    connected = connect(parse_url(url))
    try:
        return await connected.service(call)
    finally:
        await connected.close()


async def test_listings_have_exactly_what_the_client_may_use() -> None:
    """Index, statistics and status of all models name the models of the rule alone."""
    async with running(config()) as gateway:
        found = all_urls(gateway, "open")
        for name in ("oip.http", "oip.grpc"):
            index = await reply_of(gateway, found[name], RepositoryIndexRequest())
            assert {"open", "opened"} == {entry.name for entry in index}
            await ask(found[name], "open", INPUTS)
            await ask(found[name], "opened", INPUTS)
            statistics = await reply_of(gateway, found[name], ModelStatisticsRequest())
            assert {"open", "opened"} == {entry.name for entry in statistics}
        for name in ("trtis.http", "trtis.grpc"):
            index = await reply_of(gateway, found[name], RepositoryIndexRequest())
            assert {"open", "opened"} == {entry.name for entry in index}


async def test_listings_are_denied_by_a_rule_for_all_models() -> None:
    """A rule that denies without models denies the listing; one with models takes its entries."""
    without = "[{clients: anonymous, operations: all}, %s]"
    all_denied = "{effect: deny, clients: anonymous, operations: index}"
    some_denied = "{effect: deny, clients: anonymous, operations: index, models: opened}"
    async with running(config(without % all_denied)) as gateway:
        url = all_urls(gateway, "open")["oip.grpc"]
        with pytest.raises(GatewayError, match="may not use index here"):
            await reply_of(gateway, url, RepositoryIndexRequest())
    async with running(config(without % some_denied)) as gateway:
        url = all_urls(gateway, "open")["oip.grpc"]
        index = await reply_of(gateway, url, RepositoryIndexRequest())
        assert {"open", "closed"} == {entry.name for entry in index}


async def test_metadata_of_a_forbidden_model_is_that_of_none() -> None:
    """One text stands for a model that exists and one that does not."""
    async with running(config()) as gateway:
        url = all_urls(gateway, "open")["oip.http"]
        texts = set()
        for name in ("closed", "nothing"):
            with pytest.raises(GatewayError) as raised:
                await reply_of(gateway, url, ModelMetadataRequest(model=ModelRef(name)))
            texts.add(raised.value.message)
        assert texts == {"this client may not use this model for metadata"}


async def sent(
    client: ClientSession, method: str, url: str, document: Any = None
) -> tuple[int, Mapping[str, str], bytes]:
    """Return status, headers and body of the response to one request."""
    async with client.request(method, url, json=document) as response:
        return response.status, response.headers, await response.read()


async def test_refusals_have_the_form_of_their_carrier() -> None:
    """403 is an answer in the protocol's own form."""
    async with running(config()) as gateway, ClientSession() as client:
        base = f"http://{gateway.addresses['main.http']}"
        text = "this client may not use this model for inference"
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}
        url = f"{base}/v2/models/closed/infer"
        status, _, body = await sent(client, "POST", url, {"inputs": [tensor]})
        assert (403, {"error": text}) == (status, json.loads(body))
        status, headers, body = await sent(client, "GET", f"{base}/api/status/closed")
        assert (403, b"") == (status, body)
        assert "UNAVAILABLE" in headers["nv-status"]
        url = f"{base}/grps/v1/infer/predict"
        status, _, body = await sent(client, "POST", url, {"model": "closed", "str_data": "x"})
        expected = {"code": 403, "msg": text, "status": "FAILURE"}
        assert (403, expected) == (status, json.loads(body)["status"])
        brpc = f"http://{gateway.addresses['main.grps.brpc']}/GrpsBrpcService/Predict"
        document = {"model": "closed", "str_data": "x"}
        status, headers, body = await sent(client, "POST", brpc, document)
        assert (403, 403) == (status, json.loads(body)["status"]["code"])
        assert "x-bd-error-code" not in headers


async def test_refusals_over_grpc_and_their_metric() -> None:
    """Open Inference has PERMISSION_DENIED, in a stream an `error_message`; both are counted."""
    async with (
        running(config()) as gateway,
        aio.insecure_channel(gateway.addresses["main.grpc"]) as channel,
    ):
        request = oip.ModelInferRequest(model_name="closed")
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=oip.ModelInferRequest.SerializeToString,
            response_deserializer=oip.ModelInferResponse.FromString,
        )
        with pytest.raises(aio.AioRpcError) as raised:
            await infer(request)
        assert grpc.StatusCode.PERMISSION_DENIED is raised.value.code()
        stream = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=oip.ModelInferRequest.SerializeToString,
            response_deserializer=oip.ModelStreamInferResponse.FromString,
        )
        replies = [reply async for reply in stream(iter([request, request]))]
        assert ["this client may not use this model for inference"] * 2 == [
            reply.error_message for reply in replies
        ]
        page = (await gateway.page(""))[0].decode()
        expected = 'gateway_access_denied_total{client="anonymous",operation="inference"} 3.0'
        assert expected in page


async def test_health_and_reflection_obey_the_rules() -> None:
    """The server's health is public; a model's is not, and reflection hides other protocols."""
    rules = '[{clients: anonymous, operations: all, models: open, protocols: ["oip.*", "grpc.*"]}]'
    async with (
        running(config(rules)) as gateway,
        aio.insecure_channel(gateway.addresses["main.grpc"]) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        assert (await health.Check(health_pb2.HealthCheckRequest(service="open"))).status == 1
        for name in ("closed", "nothing"):
            with pytest.raises(aio.AioRpcError) as raised:
                await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert grpc.StatusCode.PERMISSION_DENIED is raised.value.code()
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        replies = [each async for each in stub.ServerReflectionInfo(iter([question]))]
        names = [each.name for each in replies[0].list_services_response.service]
        assert names == ["inference.GRPCInferenceService"]


METRICS = [
    ("{clients: anonymous, operations: all, models: 'open*'}", 403),  # its labels are of all models
    ("{clients: anonymous, operations: [inference, statistics, passthrough]}", 403),
    ("{clients: anonymous, operations: metrics, protocols: oip.http}", 403),
    ("{clients: anonymous, operations: metrics}", 200),
    ("{clients: anonymous, operations: metrics, protocols: metrics, listeners: main}", 200),
    ("{clients: anonymous, operations: all}", 200),
]


@pytest.mark.parametrize("transport", ["native", "reference"])
@pytest.mark.parametrize(("rule", "status"), METRICS)
async def test_the_metrics_page_of_a_listener_is_an_operation(
    rule: str, status: int, transport: str
) -> None:
    """Who may use some models does not read the labels of others; the refusal is counted."""
    more = f"  - name: main\n    metrics: true\n    transport: {transport}\n"
    text = config(f"[{rule}]").replace("  - name: main\n", more)
    async with running(text) as gateway, ClientSession() as client:
        url = f"http://{gateway.addresses['main.http']}/metrics"
        for method in ("GET", "HEAD"):
            found, headers, body = await sent(client, method, url)
            assert status == found
            if status == 403 and method == "GET":
                assert {"error": "this client may not use metrics here"} == json.loads(body)
                assert headers["x-request-id"]
        page = (await gateway.page(""))[0].decode()
        denied = 'gateway_access_denied_total{client="anonymous",operation="metrics"} 2.0'
        rejected = 'gateway_refused_requests_total{code="forbidden",protocol="metrics"} 2.0'
        assert (status == 403, status == 403) == (denied in page, rejected in page)


async def test_the_size_of_the_inputs_counts() -> None:
    """A rule with `max_elements` and `max_bytes` allows inferences of no more."""
    rules = "[{clients: anonymous, operations: all, max_elements: 32, max_bytes: 128}]"
    larger = {name: np.concatenate([value, value]) for name, value in INPUTS.items()}
    async with running(config(rules)) as gateway:
        for name in ("oip.http", "oip.grpc", "trtis.http"):
            url = all_urls(gateway, "open")[name]
            await ask(url, "open", INPUTS)
            with pytest.raises(
                GatewayError, match=r"^[0-9]+ (elements|bytes) are more than this client may"
            ):
                await ask(url, "open", larger)


async def test_a_reload_changes_the_rules() -> None:
    """The next call after a reload meets the new rules."""
    async with running(config()) as gateway:
        assert await outcome(gateway, "oip.http", "closed") == "forbidden"
        await gateway.reload(load_text(config(ALLOWED.replace("open*", "closed"))))
        assert await outcome(gateway, "oip.http", "closed") == "ok"
        assert await outcome(gateway, "oip.http", "open") == "forbidden"
        await gateway.reload(load_text(config("[]")))
        assert await outcome(gateway, "oip.http", "open") == "ok"


async def test_too_many_elements_were_forbidden() -> None:
    """The status says that less would be allowed, the text how much it was."""
    rules = "[{clients: anonymous, operations: inference, max_elements: 15}]"
    values = [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}]
    async with running(config(rules)) as gateway:
        address = gateway.addresses["main.http"]
        body = json.dumps({"inputs": values}).encode()
        reply = await exchange(address, "/v2/models/open/infer", method="POST", body=body)
    assert 413 == reply.status
    assert "16 elements are more than this client may send" == json.loads(reply.body)["error"]
