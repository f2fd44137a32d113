"""Items of TorchServe's clients as inferences: recorded, counted, replayed and converted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
import pytest

from gateway.app import Gateway
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
