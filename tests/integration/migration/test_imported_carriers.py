"""Imported configurations of servers that stay: their clients can call on every carrier."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from aiohttp import ClientSession, web
from google.protobuf.json_format import MessageToDict, ParseDict
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from gateway.schema import seldon_pb2 as pb
from tests.integration.asking_kit import running
from tests.integration.migration.digits_kit import demo_text
from tests.integration.migration.test_sidecar_records import CARRIERS, address, infer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

_INPUT = '[{"name": "X", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 64]}}]'
_MODELS = '{"model_config_list": [{"config": {"name": "digits", "base_path": "/models/digits"}}]}'
_DEPLOYMENT = """
kind: SeldonDeployment
metadata: {name: digits}
spec: {predictors: [{name: main, graph: {name: digits}}]}
"""
_SERVICE = """
kind: InferenceService
metadata: {name: digits}
spec: {predictor: {model: {protocolVersion: grpc-v2}}}
"""
# A file of each server, and the protocols that its clients speak.
FILES = {
    "mlflow": ("MLmodel", f"signature: {{inputs: '{_INPUT}'}}", ["mlflow"]),
    "tfs": ("models.config", 'model_config_list { config { name: "digits" } }', ["tfs"]),
    "torchserve": ("config.properties", 'models={"digits": {"1.0": {}}}', ["torchserve"]),
    "ovms": ("config.json", _MODELS, ["tfs", "oip"]),
    "seldon": ("deployment.yaml", _DEPLOYMENT, ["seldon"]),
    "kserve": ("service.yaml", _SERVICE, ["tfs", "oip"]),
}


def imported(folder: Path, name: str, file: str, text: str) -> dict[str, Any]:
    """Return the imported configuration, without the processes that tests need not."""
    (folder / file).write_text(text)
    out = folder / "gateway.yaml"
    arguments = ["import", name, str(folder / file), "-o", str(out)]
    done = CliRunner().invoke(command_line(["import"]), arguments)
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = yaml.safe_load(out.read_text())
    document["listeners"][0].update({"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"})
    return document | {"admin": {"address": "off"}, "lifecycle": {"pre_stop": "0s", "drain": "1s"}}


@pytest.mark.parametrize("name", FILES)
async def test_clients_can_call_on_every_carrier(tmp_path: Path, name: str) -> None:
    """The file needs other addresses, and nothing else, for each carrier that it opens."""
    file, text, protocols = FILES[name]
    folder = tmp_path / "digits"
    folder.mkdir()
    document = imported(folder, name, file, text)
    (listener,) = document["listeners"]
    keys = [
        key
        for key in CARRIERS
        if key.partition(".")[0] in protocols and key.partition(".")[2] in listener
    ]
    async with running(demo_text()) as server:
        for upstream in document["upstreams"].values():
            scheme, _, _ = upstream["url"].partition("://")
            upstream["url"] = address(server, scheme.replace("+", "."))
        async with running(yaml.safe_dump(document)) as gateway:
            for key in keys:
                await infer(gateway, key)
    assert keys


_V1 = """
kind: InferenceService
metadata: {name: digits}
spec: {predictor: {sklearn: {}}}
"""
BODIES: list[Any] = [
    {"instances": [[1.0, 2]]},
    {"instances": [{"b64": "aGk="}], "parameters": {"a": 1}},
    {"text": "of a predictor of its own"},
]


async def test_each_body_of_a_client_reaches_kserve_v1(tmp_path: Path) -> None:
    """A server of V1 tells nothing of its model, and some have bodies of their own."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"predictions": [await request.json(), request.path]})

    async def ready(_request: web.Request) -> web.Response:
        return web.json_response({"name": "digits", "ready": True})

    app = web.Application()
    for verb in ("predict", "explain"):
        app.router.add_post(f"/v1/models/digits:{verb}", answer)
    for path in ("/", "/v1/models/digits"):
        app.router.add_get(path, ready)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    document = imported(tmp_path, "kserve", "service.yaml", _V1)
    (upstream,) = document["upstreams"].values()
    upstream["url"] = f"tfs+http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with (
            running(yaml.safe_dump(document)) as gateway,
            ClientSession(f"http://{gateway.addresses['main.http']}") as http,
        ):
            for body in BODIES:
                for path in ("/v1/models/digits:predict", "/v1/models/digits:explain"):
                    async with http.post(path, json=body) as reply:
                        assert (200, {"predictions": [body, path]}) == (
                            reply.status,
                            await reply.json(content_type=None),
                        )
            async with http.get("/v1/models/digits") as reply:
                assert reply.status == 200
    finally:
        await runner.cleanup()


@asynccontextmanager
async def orchestrator() -> AsyncIterator[dict[str, int]]:
    """Run what Seldon's orchestrator serves, which returns data; yield its ports.

    Source: seldon-core 1.18.2, executor/api/rest/server.go and executor/api/grpc/seldon.
    """

    async def ready(_request: web.Request) -> web.Response:
        return web.Response()

    async def predict(request: web.Request) -> web.Response:
        return web.json_response(await request.json())

    async def call(message: bytes, _context: Any) -> bytes:
        return message

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
        def service(self, call_details: grpc.HandlerCallDetails) -> Any:
            known = {"/seldon.protos.Seldon/Predict", "/seldon.protos.Seldon/SendFeedback"}
            return (
                grpc.unary_unary_rpc_method_handler(call) if call_details.method in known else None
            )

    app = web.Application()
    app.router.add_get("/ready", ready)
    for path in ("predictions", "feedback"):
        app.router.add_post(f"/api/v1.0/{path}", predict)
    runner, server = web.AppRunner(app), grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ports = {"http": runner.addresses[0][1], "grpc": server.add_insecure_port("127.0.0.1:0")}
    await server.start()
    try:
        yield ports
    finally:
        await server.stop(0)
        await runner.cleanup()


MESSAGES: list[dict[str, Any]] = [
    {"data": {"names": ["a", "b"], "ndarray": [[1.0, "x"]]}},
    {"data": {"tensor": {"shape": [1, 2], "values": [1.0, 2.5]}}},
    {"strData": "text"},
    {"binData": "aGk="},
    {"jsonData": {"any": [1.0, None]}},
]


async def test_each_message_of_a_client_reaches_an_orchestrator(tmp_path: Path) -> None:
    """It tells neither tensors nor health, so each carrier goes to its own port, as it came."""
    document = imported(tmp_path, "seldon", "deployment.yaml", _DEPLOYMENT)
    async with orchestrator() as ports:
        for upstream in document["upstreams"].values():
            scheme, _, _ = upstream["url"].partition("://")
            upstream["url"] = f"{scheme}://127.0.0.1:{ports[scheme.partition('+')[2]]}"
        async with (
            running(yaml.safe_dump(document)) as gateway,
            ClientSession(f"http://{gateway.addresses['main.http']}") as http,
            grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel,
        ):
            async with http.get("/health/status") as health:
                assert health.status == 200
            predict = channel.unary_unary(
                "/seldon.protos.Seldon/Predict",
                request_serializer=pb.SeldonMessage.SerializeToString,
                response_deserializer=pb.SeldonMessage.FromString,
            )
            for message in MESSAGES:
                async with http.post("/api/v1.0/predictions", json=message) as reply:
                    assert (200, message) == (reply.status, json.loads(await reply.read()))
                answer = await predict(ParseDict(message, pb.SeldonMessage()))
                assert MessageToDict(answer) == message
            feedback = {"request": MESSAGES[0], "reward": 1}
            async with http.post("/api/v1.0/feedback", json=feedback) as reply:
                assert (200, feedback) == (reply.status, json.loads(await reply.read()))
