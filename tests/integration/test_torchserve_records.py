"""Items of TorchServe's clients as inferences: recorded, counted, replayed and converted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from gateway.app import Gateway, complete_service, connect
from gateway.cli.demo.config import demo_config
from gateway.migration.captures.capture import Capture
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.rules import EXACT, OutputRules
from gateway.migration.compare.tensors import Outcome
from gateway.migration.replay.replay import Replay, ReplayOptions, ReplayOutcome
from gateway.protocols.torchserve.grpc.codec import PREDICTIONS
from gateway.schema import torchserve_inference_pb2 as pb
from gateway.settings.units import parse_url
from tests.integration.asking_kit import running, urls
from tests.integration.test_stock import stock

pytestmark = pytest.mark.timeout(120)

ITEMS: Final = 20
SCANS: Final = load_digits().data[:ITEMS].astype(np.float32)
RULES: Final = OutputRules(outputs={"label": EXACT, "probabilities": EXACT})
CALLS: Final = {"torchserve.http": 3 * ITEMS, "torchserve.grpc": ITEMS}


def configuration(directory: Path | None = None) -> str:
    """Return the demo's models behind a listener of all protocols."""
    config = demo_config(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="off")
    config["lifecycle"] = {"pre_stop": "0s", "drain": "1s"}
    if directory is not None:
        config["capture"] = {
            "directory": str(directory / "capture"),
            "payload": "full",
            "min_free": 0,
        }
        config |= {"state": {"directory": str(directory / "state")}, "stock": {}}
    return yaml.safe_dump(config)


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


async def outcomes(capture: Path, url: str) -> Counter[tuple[str, Outcome]]:
    """Replay a capture; return how many calls of each protocol had each outcome."""
    address, found = parse_url(url), Counter[tuple[str, Outcome]]()
    connected = connect(address)

    def done(record: Any, _outcome: ReplayOutcome, comparison: Comparison | None) -> None:
        assert comparison is not None
        found[record.call.protocol, comparison.outcome] += 1

    replay = Replay(complete_service(connected, address), ReplayOptions(), RULES, on_done=done)
    try:
        report = await replay.run(Capture(capture).calls())
    finally:
        await connected.close()
    assert (report.failed, report.left_out, report.uncompared) == (0, {}, 0)
    return found


async def test_recorded_items_are_in_the_stock_and_match_open_inference(tmp_path: Path) -> None:
    """Each carrier is one protocol of the last hour; the same calls in Open Inference match."""
    async with running(configuration(tmp_path)) as gateway:
        await send_all(gateway)
    listed = stock(str(tmp_path / "state"), "--since", "1h", "--output", "json")
    assert listed.exit_code == 0, listed.output
    rows = json.loads(listed.stdout)
    assert {("digits", 0)} == {(row["model"], row["errors"]) for row in rows}
    counted = Counter[str]()
    for row in rows:
        counted[row["protocol"]] += row["calls"]
    assert counted == CALLS
    async with running(configuration()) as gateway:
        for protocol in ("oip.http", "oip.grpc"):
            found = await outcomes(tmp_path / "capture", urls(gateway, "digits")[protocol])
            assert {(name, Outcome.MATCH): count for name, count in CALLS.items()} == found
