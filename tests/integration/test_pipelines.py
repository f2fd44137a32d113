"""Pipelines through whole gateways and real sockets: every protocol, steps behind another gateway."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from gateway.app import Gateway
from gateway.cli.demo.samples import load_scans
from gateway.config.load import load_text
from gateway.ir.calls import ModelReadyRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import DeadlineExceeded, GatewayError, Unavailable
from tests.integration.asking_kit import Array, ask, running, urls
from tests.integration.http_kit import retried

EXAMPLE = Path(__file__).parents[2] / "config" / "pipelines.yaml"
PLAIN = """
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
"""

A = np.arange(32, dtype=np.int32).reshape(2, 16)
B = np.full((2, 16), 7, np.int32)


def example() -> str:
    """Return the example of the configuration, on ports that are free."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for address in ("127.0.0.1:8000", "127.0.0.1:8001"):
        assert address in text
        text = text.replace(address, "127.0.0.1:0")
    return text + "admin: {address: null, metrics: null}\n"


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Gateway]:
    """A gateway of the example."""
    async with running(example(), EXAMPLE.parent) as gateway:
        yield gateway


async def test_chain_of_models_in_every_protocol(served: Gateway) -> None:
    """Two models in sequence, called as one, have the result of numpy."""
    expected = {"twice_a": (2 * A).tolist(), "twice_b": (2 * B).tolist()}
    for codec, url in urls(served, "twice").items():
        found = await ask(url, "twice", {"a": A, "b": B})
        values = {name: array.tolist() for name, array in found.items()}
        assert (codec, expected) == (codec, values)


async def test_parallel_models_in_every_protocol(served: Gateway) -> None:
    """Two models in parallel have the results that each has alone."""
    scans = load_scans()[:2]
    pixels = np.array([scan.pixels for scan in scans], np.float32)
    texts = np.array([b"Where is the station?", b"Wo ist der Bahnhof, bitte?"], object)
    alone = await ask(urls(served, "digits")["oip.grpc"], "digits", {"X": pixels})
    expected = ([scan.digit for scan in scans], alone["probabilities"].tolist(), [b"en", b"de"])
    for codec, url in urls(served, "letter").items():
        found = await ask(url, "letter", {"scan": pixels, "text": texts})
        # TensorRT v1 writes the one number of an item as a list of one.
        values = (
            found["digit"].reshape(-1).tolist(),
            found["probabilities"].tolist(),
            [bytes(item) for item in found["language"].reshape(-1)],
        )
        assert (codec, expected) == (codec, values)


async def ask_until(url: str, model: str, inputs: Mapping[str, Array]) -> Any:
    """Call until the server is available again."""
    return await retried(lambda: ask(url, model, inputs), Unavailable)


FRONT = (
    PLAIN
    + """
version: 1
upstreams:
  far: {url: "FAR", probe: {interval: 60s}}
  near: {url: "NEAR", probe: {interval: 60s}}
pipelines:
  both:
    steps:
      twice: {inputs: {a: request.a, b: request.b}}
      simple: {inputs: {INPUT0: twice.twice_a, INPUT1: twice.twice_b}}
    outputs: {sum: simple.OUTPUT0, a: twice.twice_a}
routes:
  - {match: {model: both}, targets: [{model: both}], timeout: 5s}
  - {match: {model: twice}, targets: [{upstream: far}]}
  - {match: {model: simple}, targets: [{upstream: near}]}
"""
)


def front_of(far: str, near: str) -> str:
    return FRONT.replace("FAR", far).replace("NEAR", near)


@pytest.mark.parametrize(
    ("far", "near"),
    [("oip.grpc", "oip.http"), ("grps.http", "trtis.grpc"), ("trtis.http", "grps.grpc")],
)
async def test_steps_call_another_gateway(served: Gateway, far: str, near: str) -> None:
    """A step may be a pipeline or a model of another gateway, each in its own protocol."""
    places = urls(served, "")
    async with running(front_of(places[far], places[near])) as front:
        found = await ask(urls(front, "both")["oip.http"], "both", {"a": A, "b": B})
    assert ((2 * A + 2 * B).tolist(), (2 * A).tolist()) == (
        found["sum"].tolist(),
        found["a"].tolist(),
    )


async def test_lost_upstream_names_the_step_and_recovers() -> None:
    """The error names step and model; the pipeline recovers with the upstream."""
    async with running(example(), EXAMPLE.parent) as behind:
        address = behind.addresses["main.grpc"]
        places = {"far": f"oip+grpc://{address}", "near": f"oip+grpc://{address}"}
        front = Gateway(load_text(front_of(**places)))
        await front.start()
    try:
        url = urls(front, "both")["oip.grpc"]
        with pytest.raises(GatewayError, match=r"pipeline 'both', step 'twice' \(model 'twice'\)"):
            await ask(url, "both", {"a": A, "b": B})
        again = example().replace("grpc: 127.0.0.1:0", f'grpc: "{address}"')
        async with running(again, EXAMPLE.parent):
            found = await ask_until(url, "both", {"a": A, "b": B})
            assert (2 * A).tolist() == found["a"].tolist()
            ready = ModelReadyRequest(model=ModelRef("both"))
            assert await front.service(ready) is True
    finally:
        await front.stop()


SLOW = (
    PLAIN
    + """
version: 1
models:
  slow: {backend: python, options: {callable: "gateway.backends.examples:slow", instances: 2}}
pipelines:
  slowly:
    steps:
      one: {model: slow, inputs: {INPUT0: request.ms}}
      two: {model: slow, inputs: {INPUT0: one.OUTPUT0}}
    outputs: {ms: two.OUTPUT0}
"""
)


async def test_deadline_covers_all_steps() -> None:
    """Two steps of 300 ms exceed half a second, and the call fails at its deadline."""
    async with running(SLOW) as gateway:
        url = urls(gateway, "slowly")["oip.grpc"]
        ms = np.array([300], np.int32)
        started_s = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await ask(url, "slowly", {"ms": ms}, within_s=0.5)
        assert time.monotonic() - started_s > 0.4
        found = await ask(url, "slowly", {"ms": ms}, within_s=60)
        assert [300] == found["ms"].tolist()
