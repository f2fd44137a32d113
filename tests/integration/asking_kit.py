"""A gateway of a configuration in this process, called over real sockets in every protocol."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
import yaml

from gateway.app import Gateway, connect
from gateway.cli.demo.config import demo_config
from gateway.config.load import load_text
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, Metadata, ModelRef, Need
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.complete.policy import Complete
from gateway.policies.signatures import Signatures
from gateway.registry import protocol
from gateway.settings.signature import SignatureConfig
from gateway.settings.units import parse_url
from tests.integration.cli_kit import Running
from tests.properties.carries import OF_TENSORS

Array = npt.NDArray[Any]

WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def server_config() -> str:
    """Return a configuration that serves both versions of the demo's model."""
    config = demo_config(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="off")
    config["lifecycle"] = {"pre_stop": "0s", "drain": "1s"}
    return yaml.safe_dump(config)


@asynccontextmanager
async def running(text: str, directory: Path | None = None) -> AsyncIterator[Gateway]:
    if "pre_stop" not in text:  # nobody balances load before a test
        document = yaml.safe_load(text)
        lifecycle = {**document.get("lifecycle", {}), "pre_stop": "0s"}
        text = yaml.safe_dump({**document, "lifecycle": lifecycle})
    gateway = Gateway(load_text(text, directory=directory))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


def urls(gateway: Gateway | Running, model: str) -> dict[str, str]:
    """Return a URL of each protocol and carrier that *gateway* listens on."""
    found = {}
    for name in sorted(OF_TENSORS):
        for carrier in ("http", "grpc"):
            if carrier in protocol(name).carriers:
                url = f"{name}+{carrier}://{gateway.addresses[f'main.{carrier}']}"
                found[f"{name}.{carrier}"] = url + (
                    f"/graphpipe/{model}" if name == "graphpipe" else ""
                )
    return found


async def ask(
    url: str,
    model: str,
    inputs: Mapping[str, Array],
    within_s: float = 10,
    metadata: Metadata = (),
    signatures: Mapping[str, SignatureConfig] = MappingProxyType({}),
) -> Any:
    """Call a server as an upstream of its protocol is called; return its outputs by name."""
    connected = connect(parse_url(url), question_headers=dict(metadata))
    context = Context(needs=WHOLE, deadline=time.monotonic() + within_s, metadata=metadata)
    tensors = tuple(array_tensor(name, array) for name, array in inputs.items())
    call = InferRequest(model=ModelRef(model), inputs=tensors, context=context)
    try:
        described = Signatures(connected.service, signatures)
        reply = await Complete(described, connected.needs)(call)
    finally:
        await connected.close()
    return {tensor.name: as_numpy(tensor) for tensor in reply.outputs}
