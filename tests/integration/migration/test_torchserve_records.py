"""Items of TorchServe's clients as inferences: recorded, counted, replayed and converted."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
import pytest
import yaml

from gateway.app import Gateway
from gateway.migration.captures.capture import Capture
from gateway.migration.compare.tensors import Outcome
from gateway.protocols.torchserve.grpc.codec import PREDICTIONS
from gateway.schema import torchserve_inference_pb2 as pb
from tests.integration.asking_kit import running, urls
from tests.integration.migration.digits_kit import ROWS, SCANS, demo_text, outcomes
from tests.integration.migration.test_stock import stock

pytestmark = pytest.mark.timeout(120)

CALLS: Final = {"torchserve.http": 3 * ROWS, "torchserve.grpc": ROWS}


async def send_all(gateway: Gateway) -> None:
    """Send each scan as JSON with and without its content type, as a form, and over gRPC."""
    url = f"http://{gateway.addresses['main.http']}/predictions/digits"
    async with aiohttp.ClientSession() as session:
        for item in SCANS.tolist():
            text = json.dumps(item)
            form = aiohttp.FormData({"data": text})
            for body in ({"json": {"X": item}}, {"data": text.encode()}, {"data": form}):
                more: Any = body
                async with session.post(url, **more) as reply:
                    assert reply.status == 200, await reply.text()
                    assert set(json.loads(await reply.read())) == {"label", "probabilities"}
    async with grpc.aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
        method = channel.unary_unary(
            PREDICTIONS, request_serializer=pb.PredictionsRequest.SerializeToString
        )
        for item in SCANS.tolist():
            body = {"data": json.dumps(item).encode()}
            await method(pb.PredictionsRequest(model_name="digits", input=body))


async def test_recorded_items_are_in_the_stock_and_match_open_inference(tmp_path: Path) -> None:
    """Each carrier is one protocol of the last hour; the same calls in Open Inference match."""
    async with running(demo_text(tmp_path)) as gateway:
        await send_all(gateway)
    listed = stock(str(tmp_path / "state"), "--since", "1h", "--output", "json")
    assert listed.exit_code == 0, listed.output
    rows = json.loads(listed.stdout)
    assert {("digits", 0)} == {(row["model"], row["errors"]) for row in rows}
    counted = Counter[str]()
    for row in rows:
        counted[row["protocol"]] += row["calls"]
    assert counted == CALLS
    async with running(demo_text()) as gateway:
        for protocol in ("oip.http", "oip.grpc"):
            found = await outcomes(tmp_path / "capture", urls(gateway, "digits")[protocol])
            assert {(name, Outcome.MATCH): count for name, count in CALLS.items()} == found


def doubled(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return a model's output, twice its input."""
    return {"Y": tensors["X"] * 2}


def tensors(shape: list[int]) -> dict[str, Any]:
    """Return a signature of X and Y with one shape."""
    found = {"datatype": "FP32", "shape": shape}
    return {"inputs": [{"name": "X", **found}], "outputs": [{"name": "Y", **found}]}


def doubling(model: dict[str, Any], **more: Any) -> str:
    """Return a gateway with the model `m`."""
    listener = {"name": "main", "http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}
    document = {"version": "1", "listeners": [listener], "models": {"m": model}, **more}
    return yaml.safe_dump({**document, "admin": {"address": "off"}, "lifecycle": {"drain": "1s"}})


SERVERS: Final = {
    "largest batch": {**tensors([-1, 4]), "max_batch_size": 8},
    "variable axis": {**tensors([-1, 4]), "max_batch_size": 0},
    "no batch axis": {**tensors([4]), "max_batch_size": 0},
}


@pytest.mark.parametrize("batch", [None, True])
async def test_items_reach_models_with_and_without_a_batch_axis(
    tmp_path: Path, batch: bool | None
) -> None:
    """What TorchServe answered before is replayed to each; clients get items, without `batch`."""
    own = {} if batch is None else {"batch": batch}
    capture = {"directory": str(tmp_path), "payload": "full", "min_free": 0}
    declared = {"signature": tensors([-1, 4]), "protocols": {"torchserve": own}}
    found = {}
    callable_ = {"callable": f"{__name__}:doubled"}
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(
                running(doubling({"backend": "python", "options": callable_, "signature": each}))
            )
            for name, each in SERVERS.items()
        }
        url = f"torchserve+http://{servers['largest batch'].addresses['main.http']}"
        text = doubling(declared, upstreams={"old": {"url": url}}, capture=capture)
        async with running(text) as gateway, aiohttp.ClientSession() as session:
            for server in (gateway, *(servers.values() if batch is None else ())):
                path = f"http://{server.addresses['main.http']}/predictions/m"
                async with session.post(path, data=b"[1, 2, 3, 4]") as reply:
                    assert await reply.json(content_type=None) == [2, 4, 6, 8]
        assert sum(1 for _ in Capture(tmp_path).calls()) == 1
        for name, server in servers.items():
            found[name] = await outcomes(tmp_path, urls(server, "m")["oip.grpc"])
    assert {name: {("torchserve.http", Outcome.MATCH): 1} for name in SERVERS} == found
