"""What a sidecar records of ordinary inferences between a client and a server of one protocol."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
import yaml

from gateway.app import Gateway
from gateway.cli.demo.config import TEXT_MODEL
from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported
from gateway.ir.limits import MessageLimits
from gateway.migration.captures.capture import Capture
from gateway.registry import PROTOCOLS, protocol
from gateway.settings.signature import SignatureConfig
from gateway.shadow.records.records import OLD
from tests.integration.asking_kit import ask, running
from tests.integration.migration.digits_kit import SCANS, demo_text

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

CARRIERS = {
    f"{name}.{carrier}": f"{name}+{carrier}"
    for name in PROTOCOLS
    for carrier in protocol(name).carriers
    if carrier in {"http", "grpc"}
}
SIGNATURE = {
    "inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, 64]}],
    "outputs": [
        {"name": "label", "datatype": "INT64", "shape": [-1]},
        {"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]},
    ],
    "max_batch_size": 8,
}


def tells_metadata(key: str) -> bool:
    """Return whether the servers of a protocol tell the tensors of a model."""
    name, _, carrier = key.partition(".")
    spec = protocol(name)
    codec = spec.carriers[carrier].codec(MessageLimits(), spec.options({}))
    try:
        codec.encode_call(ModelMetadataRequest(model=ModelRef("digits")))
    except Unsupported:
        return False
    return True


def address(gateway: Gateway, key: str) -> str:
    """Return the URL of a protocol and carrier."""
    _, _, carrier = key.partition(".")
    return f"{CARRIERS[key]}://{gateway.addresses[f'main.{carrier}']}"


def sidecar_text(server: Gateway, directory: Path, keys: list[str]) -> str:
    """Return a configuration that records, and sends each call to a server of its own protocol."""
    document = yaml.safe_load(demo_text(directory))
    document["models"] = (
        {} if all(map(tells_metadata, keys)) else {"digits": {"signature": SIGNATURE}}
    )
    names = {key: key.replace(".", "_") for key in keys}
    document["upstreams"] = {name: {"url": address(server, key)} for key, name in names.items()}
    document["routes"] = [
        {"match": {"protocol": key}, "targets": [{"upstream": name}]} for key, name in names.items()
    ]
    return yaml.safe_dump(document)


async def infer(gateway: Gateway, key: str) -> None:
    """Send one ordinary inference of a client."""
    if not key.startswith("openai."):
        signatures = (
            {} if tells_metadata(key) else {"digits": SignatureConfig.model_validate(SIGNATURE)}
        )
        assert await ask(
            address(gateway, key), "digits", {"X": SCANS[:1]}, signatures=signatures
        ), key
        return
    # A protocol of texts has no tensors.
    url = f"http://{gateway.addresses['main.http']}/v1/embeddings"
    document = {"model": TEXT_MODEL, "input": "0 " * 64}
    async with aiohttp.ClientSession() as session, session.post(url, json=document) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize("telling", [True, False])
async def test_calls_that_are_sent_on_are_recorded_with_tensors(
    tmp_path: Path, telling: bool
) -> None:
    """In every protocol, outputs that a server of the same protocol sent have datatype and shape.

    Where servers tell nothing of their models, the sidecar declares their tensors.
    """
    keys = [key for key in CARRIERS if tells_metadata(key) is telling]
    async with (
        running(demo_text()) as server,
        running(sidecar_text(server, tmp_path, keys)) as gateway,
    ):
        for key in keys:
            await infer(gateway, key)
    calls = {call.call.protocol: call for call in Capture(tmp_path / "capture").calls()}
    found = {
        key: (
            call.call.code,
            call.is_forwarded,
            call.missing,
            {bool(row.datatype and row.shape) for row in call.tensors if row.side == OLD},
        )
        for key, call in calls.items()
    }
    assert keys
    assert dict.fromkeys(keys, ("ok", False, "", {True})) == found
