"""Seldon's protocol on a listener with all protocols, over REST and gRPC, and as an upstream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToDict, ParseDict

from gateway.app import Gateway
from gateway.schema import seldon_pb2 as pb
from tests.integration.asking_kit import running

SERVER = """
version: 1
listeners:
  - {name: main, http: "127.0.0.1:0", grpc: "127.0.0.1:0", default_model: add}
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  add:
    backend: python
    options: {callable: "gateway.backends.examples:simple"}
    signature:
      inputs:
        - {name: INPUT0, datatype: INT32, shape: [-1, 2]}
        - {name: INPUT1, datatype: INT32, shape: [-1, 2]}
      outputs:
        - {name: OUTPUT0, datatype: INT32, shape: [-1, 2]}
        - {name: OUTPUT1, datatype: INT32, shape: [-1, 2]}
    protocols:
      seldon: {columns: {INPUT0: [0, 1], INPUT1: [2, 3]}, output: OUTPUT1, names: [left, right]}
  text:
    backend: python
    options: {callable: "gateway.backends.examples:identity_bytes"}
    signature:
      inputs: [{name: INPUT0, datatype: BYTES, shape: [-1, 1]}]
      outputs: [{name: OUTPUT0, datatype: BYTES, shape: [-1, 1]}]
    protocols:
      seldon: {json: text}
"""
FRONT = """
version: 1
listeners:
  - name: main
    http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    options: {seldon: {feedback: forward}}
admin: {address: off}
lifecycle: {pre_stop: 0s, drain: 1s}
upstreams:
  rest: {url: "seldon+http://%s/seldon/ns/text", options: {form: text}}
  grpc: {url: "seldon+grpc://%s", options: {form: text, deployment: text, service: Model}}
routes:
  - {match: {model: rest}, targets: [{upstream: rest}]}
  - {match: {model: grpc}, targets: [{upstream: grpc}]}
models:
  rest: &text
    signature:
      inputs: [{name: x, datatype: BYTES, shape: [1]}]
      outputs: [{name: y, datatype: BYTES, shape: [1]}]
  grpc: *text
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Gateway]:
    """Run a gateway with models of its own."""
    async with running(SERVER) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(server: Gateway) -> AsyncIterator[Gateway]:
    """Run a gateway whose upstreams are those of the other one."""
    addresses = server.addresses["main.http"], server.addresses["main.grpc"]
    async with running(FRONT % addresses) as gateway:
        yield gateway


async def rest(gateway: Gateway, method: str, path: str, document: Any = None) -> tuple[int, Any]:
    """Return status and JSON of a response."""
    url = f"http://{gateway.addresses['main.http']}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=document) as found,
    ):
        return found.status, json.loads(await found.read())


async def call(gateway: Gateway, method: str, message: Any, kind: Any, *metadata: Any) -> Any:
    """Return the answer to a gRPC call."""
    async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        stub = channel.unary_unary(
            f"/seldon.protos.{method}",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        return await stub(message, metadata=metadata)


@pytest.mark.asyncio(loop_scope="module")
async def test_columns_of_one_array_are_the_inputs(server: Gateway) -> None:
    """One declared output answers, with the declared names."""
    message = {"data": {"ndarray": [[1, 2, 3, 4]]}}
    for path in ("/api/v1.0/predictions", "/seldon/ns/add/api/v1.0/predictions", "/predict"):
        status, found = await rest(server, "POST", path, message)
        assert (status, found["data"]) == (200, {"names": ["left", "right"], "ndarray": [[-2, -2]]})
    tensor = pb.SeldonMessage(data={"tensor": {"shape": [1, 4], "values": [1, 2, 3, 5]}})
    for service in ("Seldon", "Model"):
        reply = await call(server, f"{service}/Predict", tensor, pb.SeldonMessage)
        assert list(reply.data.tensor.values) == [-2, -3]
        assert list(reply.data.names) == ["left", "right"]


@pytest.mark.asyncio(loop_scope="module")
async def test_metadata_of_a_call_name_the_model(server: Gateway) -> None:
    """A path does so over REST."""
    message = pb.SeldonMessage(strData="é")
    metadata = ("seldon", "text"), ("namespace", "ns")
    reply = await call(server, "Seldon/Predict", message, pb.SeldonMessage, *metadata)
    assert reply.strData == "é"
    _, found = await rest(server, "POST", "/seldon/ns/text/predict", {"jsonData": {"a": [1, "x"]}})
    assert found["jsonData"] == {"a": [1, "x"]}
    status, found = await rest(server, "POST", "/seldon/ns/nope/predict", {"strData": ""})
    assert (status, found["status"]["reason"]) == (404, "NOT_FOUND")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(server, "Seldon/Predict", message, pb.SeldonMessage, ("seldon", "nope"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.asyncio(loop_scope="module")
async def test_health_metadata_and_feedback_have_replies(server: Gateway) -> None:
    """Health is that of the default model; metadata are those of the model."""
    for path in ("/health/status", "/ready", "/live", "/seldon/ns/text/health/status"):
        assert await rest(server, "GET", path) == (200, {"meta": {}, "strData": "healthy"})
    status, found = await rest(server, "GET", "/api/v1.0/metadata/text")
    assert (status, found["inputs"][0]["datatype"]) == (200, "BYTES")
    status, found = await rest(server, "POST", "/api/v1.0/feedback", {"reward": 1.0})
    assert (status, found["data"]) == (200, {"names": [], "ndarray": []})
    request = pb.SeldonModelMetadataRequest(name="add")
    described = await call(server, "Seldon/ModelMetadata", request, pb.SeldonModelMetadata)
    assert [each.name for each in described.inputs] == ["INPUT0", "INPUT1"]
    reply = await call(server, "Model/SendFeedback", pb.Feedback(reward=1), pb.SeldonMessage)
    assert reply.meta.puid
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(server, "Router/Route", pb.SeldonMessage(), pb.SeldonMessage)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("model", ["rest", "grpc"])
async def test_open_inference_reaches_a_deployment(front: Gateway, model: str) -> None:
    """Its path stands in the URL, or its name in metadata."""
    for text in ("é", "", "x" * 9000):
        data = {"name": "x", "datatype": "BYTES", "shape": [1], "data": [text]}
        status, found = await rest(front, "POST", f"/v2/models/{model}/infer", {"inputs": [data]})
        assert (status, found["outputs"][0]["data"]) == (200, [text])
    assert (await rest(front, "GET", "/seldon/ns/rest/health/status"))[0] == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_feedback_is_forwarded_with_the_option(front: Gateway) -> None:
    """A server of Seldon answers it; the carriers are the same."""
    body = {"request": {"strData": "x"}, "reward": 1.0}
    status, found = await rest(front, "POST", "/seldon/ns/rest/send-feedback", body)
    assert (status, found["data"]) == (200, {"names": [], "ndarray": []})
    feedback = pb.Feedback(reward=1)
    reply = await call(front, "Seldon/SendFeedback", feedback, pb.SeldonMessage, ("seldon", "grpc"))
    assert reply.meta.puid


@pytest.mark.asyncio(loop_scope="module")
async def test_texts_of_an_array_reach_a_model(server: Gateway) -> None:
    """A list of texts is what the library writes."""
    message = ParseDict({"data": {"ndarray": [["a"], ["é"]]}}, pb.SeldonMessage())
    reply = await call(server, "Seldon/Predict", message, pb.SeldonMessage, ("seldon", "text"))
    assert MessageToDict(reply)["data"]["ndarray"] == [["a"], ["é"]]
