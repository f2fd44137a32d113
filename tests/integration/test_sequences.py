"""Sequences through a whole gateway before two servers: where they go, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_kit import Running, serving

SERVER = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
models:
  total: {backend: python, options: {callable: "gateway.backends.examples:SequenceSum"}}
lifecycle: {pre_stop: 0s}
"""
# The servers once as endpoints of one upstream, and once as weighted targets of a route. They do not
# show that their models take any sequence id.
FRONT = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
upstreams:
  both: {{urls: ["oip+grpc://{0}", "oip+grpc://{1}"], probe: {{interval: 60s}}}}
  first: {{url: "oip+grpc://{0}", probe: {{interval: 60s}}}}
  second: {{url: "oip+grpc://{1}", probe: {{interval: 60s}}}}
routes:
  - match: {{model: endpoints}}
    sequence_ids: text
    targets: [{{upstream: both, model: total}}]
  - match: {{model: weighted}}
    sequence_ids: text
    targets:
      - {{upstream: first, model: total, weight: 50}}
      - {{upstream: second, model: total, weight: 50}}
lifecycle: {{pre_stop: 0s}}
"""
MODELS = ("endpoints", "weighted")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Running]]:
    """Two servers that know nothing of one another."""
    config = tmp_path / "server.yaml"
    config.write_text(SERVER)
    with ExitStack() as stack:
        yield [stack.enter_context(serving(str(config))) for _ in range(2)]


@pytest.fixture
def gateway(servers: list[Running], tmp_path: Path) -> Iterator[Running]:
    """A gateway before both."""
    config = tmp_path / "gateway.yaml"
    config.write_text(FRONT.format(*(server.addresses["main.grpc"] for server in servers)))
    with serving(str(config)) as running:
        yield running


def add(gateway: Running, model: str, sequence: int | str, value: int, **flags: bool) -> Any:
    """Return the sum so far, or status and text of an error."""
    body = {"INPUT": value, "sequence_id": sequence, **flags}
    with closing(HTTPConnection(gateway.addresses["main.http"], timeout=10)) as connection:
        connection.request("POST", f"/v2/models/{model}/generate", json.dumps(body))
        answer = connection.getresponse()
        document = json.loads(answer.read())
    return document["OUTPUT"] if answer.status == 200 else (answer.status, document["error"])


def ids(model: str) -> list[int | str]:
    """Return numbers and texts that are not the other model's: it is the same one on the servers."""
    first = 1 + 8 * MODELS.index(model)
    return [*range(first, first + 8), *(f"{model}-{number}" for number in range(8))]


def test_sequences_stay_and_are_lost_with_their_server(
    servers: list[Running], gateway: Running
) -> None:
    """Each keeps its sum among others; those of a server that dies say so until they start anew."""
    for model in MODELS:
        sequences = ids(model)
        for step in range(1, 4):
            sums = [add(gateway, model, each, step, sequence_start=step == 1) for each in sequences]
            assert [step * (step + 1) // 2] * 16 == sums
    servers[0].process.kill()
    servers[0].process.wait()
    for model in MODELS:
        sequences = ids(model)
        found = {each: add(gateway, model, each, 4) for each in sequences}
        kept = [each for each in sequences if found[each] == 10]
        lost = [each for each in sequences if each not in kept]
        assert kept
        assert lost
        for each in lost:
            for _ in range(2):
                status, text = add(gateway, model, each, 4)
                assert 503 == status
                assert "restart the sequence" in text
        if model == "endpoints":  # a started one goes to the server that is left
            assert [1] * len(lost) == [
                add(gateway, model, each, 1, sequence_start=True) for each in lost
            ]
        assert [15] * len(kept) == [
            add(gateway, model, each, 5, sequence_end=True) for each in kept
        ]
