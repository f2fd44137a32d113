"""TensorFlow Serving and KServe V1 on a listener with all protocols, and as upstreams of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web

from gateway.app import Gateway
from gateway.config.load import load_text
from tests.integration.asking_kit import running
from tests.integration.tfs_models import MODELS

SERVER = f"""
version: 1
listeners:
  - {{name: main, http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}
  - {{name: kserve, http: "127.0.0.1:0", protocols: [tfs], options: {{tfs: {{dialect: kserve}}}}}}
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
models:
{MODELS}
"""
FRONT = """
version: 1
listeners:
  - {{name: main, http: "127.0.0.1:0"}}
  - {{name: kserve, http: "127.0.0.1:0", protocols: [tfs], options: {{tfs: {{dialect: kserve}}}}}}
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 1s}}
upstreams:
  rest: {{url: "tfs+http://{http}"}}
  grpc: {{url: "tfs+grpc://{grpc}"}}
  kserve: {{url: "tfs+http://{kserve}", options: {{dialect: kserve}}}}
  explaining: {{url: "tfs+http://{explaining}", options: {{dialect: kserve}}}}
routes:
  - {{match: {{model: identity_fp32}}, targets: [{{upstream: grpc}}]}}
  - {{match: {{model: digits}}, targets: [{{upstream: kserve}}]}}
  - {{match: {{model: house}}, targets: [{{upstream: explaining}}]}}
  - {{targets: [{{upstream: rest}}]}}
models:
  digits:
    signature:
      inputs: [{{name: x, datatype: FP32, shape: [-1, -1]}}]
      outputs: [{{name: y, datatype: FP32, shape: [-1]}}]
"""


async def explain(request: web.Request) -> web.Response:
    """Return what a client of an explainer sent."""
    return web.json_response({"explanations": await request.json()})


async def _alive(_request: web.Request) -> web.Response:
    return web.json_response({"status": "alive"})


async def _ready(_request: web.Request) -> web.Response:
    return web.json_response({"name": "house", "ready": True})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def explaining() -> AsyncIterator[str]:
    """Run a server with an explainer."""
    app = web.Application()
    app.router.add_get("/", _alive)
    app.router.add_get("/v1/models/house", _ready)
    app.router.add_post("/v1/models/house:explain", explain)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"{host}:{port}"
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Gateway]:
    """Run a gateway with the recorded models and all protocols."""
    running = Gateway(load_text(SERVER))
    await running.start()
    yield running
    await running.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(server: Gateway, explaining: str) -> AsyncIterator[Gateway]:
    """Run a gateway whose upstreams speak TensorFlow Serving and KServe V1."""
    addresses = {
        "http": server.addresses["main.http"],
        "grpc": server.addresses["main.grpc"],
        "kserve": server.addresses["kserve.http"],
        "explaining": explaining,
    }
    running = Gateway(load_text(FRONT.format(**addresses)))
    await running.start()
    yield running
    await running.stop()


async def ask(
    address: str, method: str, path: str, document: Any = None, **headers: str
) -> tuple[int, Any, Any]:
    """Return status, JSON and headers of the response to a request."""
    data = None if document is None else json.dumps(document)
    names = {"content-type": "application/json"}
    names |= {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{address}{path}", data=data, headers=names) as found,
    ):
        return found.status, json.loads(await found.read() or b"null"), found.headers


def tensor(name: str, array: Any) -> dict[str, Any]:
    """Return an input of Open Inference."""
    datatype = {"float32": "FP32", "int32": "INT32"}[array.dtype.name]
    data = array.ravel().tolist()
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


@pytest.mark.asyncio(loop_scope="module")
async def test_one_listener_serves_the_clients_of_three_protocols(server: Gateway) -> None:
    """Lists of models, and one model, have what clients of OpenAI, KServe and TensorFlow read."""
    address = server.addresses["main.http"]
    status, found, _ = await ask(address, "GET", "/v1/models")
    assert 200 == status
    assert "list" == found["object"]
    assert [each["id"] for each in found["data"]] == found["models"]
    assert "half" in found["models"]
    status, found, _ = await ask(address, "GET", "/v1/models/half")
    assert (200, "half", "model", True) == (status, found["id"], found["object"], found["ready"])
    assert "AVAILABLE" == found["model_version_status"][0]["state"]
    status, found, _ = await ask(
        address, "POST", "/v1/models/half:predict", {"instances": [1.0, 2.0]}
    )
    assert (200, {"predictions": [2.5, 3.0]}) == (status, found)
    status, found, _ = await ask(address, "GET", "/v2/models/half")
    assert (200, "half") == (status, found["name"])


@pytest.mark.asyncio(loop_scope="module")
async def test_columns_go_to_a_server_of_rest(front: Gateway) -> None:
    """A client of Open Inference gets both outputs of a server that has only JSON."""
    one, other = np.arange(32, dtype=np.int32).reshape(2, 16), np.ones((2, 16), np.int32)
    body = {"inputs": [tensor("INPUT0", one), tensor("INPUT1", other)]}
    status, found, _ = await ask(
        front.addresses["main.http"], "POST", "/v2/models/add_sub/infer", body
    )
    assert 200 == status, found
    outputs = {each["name"]: each for each in found["outputs"]}
    assert (one + other).ravel().tolist() == outputs["OUTPUT0"]["data"]
    assert ([2, 16], "INT32") == (outputs["OUTPUT1"]["shape"], outputs["OUTPUT1"]["datatype"])


@pytest.mark.asyncio(loop_scope="module")
async def test_requested_outputs_are_those_of_the_reply(front: Gateway) -> None:
    """REST cannot ask for outputs: the others are dropped."""
    one = np.ones((1, 16), np.int32)
    body = {
        "inputs": [tensor("INPUT0", one), tensor("INPUT1", one)],
        "outputs": [{"name": "OUTPUT1"}],
    }
    _, found, _ = await ask(front.addresses["main.http"], "POST", "/v2/models/add_sub/infer", body)
    assert ["OUTPUT1"] == [each["name"] for each in found["outputs"]]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("model", ["identity_fp32", "digits"])
async def test_servers_of_grpc_and_of_kserve_are_upstreams(front: Gateway, model: str) -> None:
    """Tensors go as content over gRPC, and as rows to KServe, whose model has a signature here."""
    values = np.array([[1.5, -2.25], [0.1, 3.0]], np.float32)
    name = "x" if model == "digits" else "INPUT0"
    body = {"inputs": [tensor(name, values)]}
    status, found, _ = await ask(
        front.addresses["main.http"], "POST", f"/v2/models/{model}/infer", body
    )
    assert 200 == status, found
    expected = values.sum(1) if model == "digits" else values
    assert np.float32(found["outputs"][0]["data"]).tolist() == expected.ravel().tolist()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("model", ["half", "identity_fp32", "digits"])
async def test_models_of_upstreams_are_described(front: Gateway, model: str) -> None:
    """Metadata and readiness come from the server, or from the configuration."""
    address = front.addresses["main.http"]
    status, found, _ = await ask(address, "GET", f"/v2/models/{model}")
    assert (200, "FP32") == (status, found["inputs"][0]["datatype"])
    assert 200 == (await ask(address, "GET", f"/v2/models/{model}/ready"))[0]


@pytest.mark.asyncio(loop_scope="module")
async def test_errors_of_servers_keep_their_codes(front: Gateway) -> None:
    """An unknown model is 404, and a wrong value is 400."""
    address = front.addresses["main.http"]
    body = {"inputs": [tensor("x", np.ones(1, np.float32))]}
    assert 404 == (await ask(address, "POST", "/v2/models/nothing/infer", body))[0]
    wrong = {"inputs": [tensor("z", np.ones(1, np.float32))]}
    assert 400 == (await ask(address, "POST", "/v2/models/half/infer", wrong))[0]


@pytest.mark.asyncio(loop_scope="module")
async def test_explanations_reach_only_servers_that_have_them(front: Gateway) -> None:
    """The body passes as it is; a server of another dialect makes it 501."""
    address = front.addresses["kserve.http"]
    body = {"instances": [[1, 2]], "more": {"free": True}}
    status, found, _ = await ask(address, "POST", "/v1/models/house:explain", body)
    assert (200, {"explanations": body}) == (status, found)
    assert 501 == (await ask(address, "POST", "/v1/models/half:explain", body))[0]


@pytest.mark.asyncio(loop_scope="module")
async def test_events_have_events_as_replies(server: Gateway) -> None:
    """Four headers make a reply with headers; the content type of events makes one object."""
    address = server.addresses["kserve.http"]
    path, body = "/v1/models/digits:predict", {"instances": [[1, 2]]}
    attributes = {"specversion": "1.0", "id": "7", "source": "test", "type": "my.request"}
    headers = {f"ce_{key}": value for key, value in attributes.items()}
    status, found, got = await ask(address, "POST", path, body, **headers)
    assert (200, {"predictions": [3.0]}) == (status, found)
    assert "io.kserve.inference.digits" == got["ce-source"]
    event = {**attributes, "time": "2026-11-26T10:00:00Z", "data": body}
    kind = "application/cloudevents+json"
    for each in (event, body):
        status, found, _ = await ask(address, "POST", path, each, content_type=kind)
        assert (200, {"predictions": [3.0]}) == (status, found["data"])
        assert "io.kserve.inference.response" == found["type"]


@pytest.mark.asyncio(loop_scope="module")
async def test_declarations_change_with_a_reload(server: Gateway) -> None:
    """A label is known after a reload that declares it."""
    del server
    text = SERVER.replace("{stable: 1, canary: 1}", "{stable: 1}")
    async with running(text) as front:
        address = front.addresses["main.http"]
        path = "/v1/models/add_sub/labels/canary"
        assert 400 == (await ask(address, "GET", path))[0]
        await front.reload(load_text(SERVER))
        assert 200 == (await ask(address, "GET", path))[0]
        await asyncio.sleep(0)
