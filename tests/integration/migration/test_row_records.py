"""Rows of TensorFlow Serving, KServe V1 and MLflow as inferences: recorded, counted and replayed."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from gateway.app import Gateway, complete_service, connect
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensors.tensor import array_tensor
from gateway.migration.compare.tensors import Outcome
from gateway.settings.units import parse_url
from tests.integration.asking_kit import WHOLE, running, urls
from tests.integration.migration.digits_kit import ROWS, SCANS, demo_text, outcomes
from tests.integration.migration.test_stock import stock

pytestmark = pytest.mark.timeout(120)

KSERVE: Final = {"name": "kserve", "http": "127.0.0.1:0", "protocols": ["tfs"]}


def configuration(directory: Path | None = None) -> str:
    """Return the demo's models behind a listener of all protocols, and one of KServe."""
    kserve = {**KSERVE, "options": {"tfs": {"dialect": "kserve"}}}
    return demo_text(directory, kserve, default_model="digits")


def bodies(row: list[float]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return one scan in each form: the listener, the path and the body."""
    predict = "/v1/models/digits:predict"
    columns = [str(number) for number in range(len(row))]
    return [
        ("main.http", predict, {"instances": [row]}),
        ("main.http", predict, {"inputs": {"X": [row]}}),
        ("kserve.http", predict, {"instances": [row]}),
        ("main.http", "/invocations", {"instances": [row]}),
        ("main.http", "/invocations", {"dataframe_split": {"columns": columns, "data": [row]}}),
    ]


async def send_all(gateway: Gateway) -> None:
    """Send each scan in each form, and over gRPC."""
    async with aiohttp.ClientSession() as session:
        for row in SCANS.tolist():
            for listener, path, body in bodies(row):
                url = f"http://{gateway.addresses[listener]}{path}"
                async with session.post(url, json=body) as reply:
                    assert 200 == reply.status, await reply.text()
    address = parse_url(urls(gateway, "digits")["tfs.grpc"])
    connected = connect(address)
    try:
        service = complete_service(connected, address)
        for number in range(ROWS):
            context = Context(deadline=time.monotonic() + 20, needs=WHOLE)
            tensor = array_tensor("X", SCANS[number : number + 1])
            await service(InferRequest(model=ModelRef("digits"), context=context, inputs=(tensor,)))
    finally:
        await connected.close()


async def test_recorded_rows_are_in_the_stock_and_match_open_inference(tmp_path: Path) -> None:
    """Each protocol is one row of the last hour; the same calls in Open Inference match exactly."""
    calls = {"tfs.http": 3 * ROWS, "mlflow.http": 2 * ROWS, "tfs.grpc": ROWS}
    async with running(configuration(tmp_path)) as gateway:
        await send_all(gateway)
    listed = stock(str(tmp_path / "state"), "--since", "1h", "--output", "json")
    assert 0 == listed.exit_code, listed.output
    rows = json.loads(listed.stdout)
    assert {("digits", 0)} == {(row["model"], row["errors"]) for row in rows}
    # Rows have neither names nor datatypes, and columns have names.
    inputs = {"tfs.http": {"", "X"}, "mlflow.http": {""}, "tfs.grpc": {"X FP32[64]"}}
    assert inputs == {
        name: {row["inputs"] for row in rows if row["protocol"] == name} for name in calls
    }
    counted = Counter[str]()
    for row in rows:
        counted[row["protocol"]] += row["calls"]
    assert calls == counted
    async with running(configuration()) as gateway:
        for protocol in ("oip.http", "oip.grpc"):
            found = await outcomes(tmp_path / "capture", urls(gateway, "digits")[protocol])
            assert {(name, Outcome.MATCH): count for name, count in calls.items()} == found
