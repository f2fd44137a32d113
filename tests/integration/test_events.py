"""Payload events: what sinks get of calls in every protocol, and the books."""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml

from tests.integration.asking_kit import ask, running, urls
from tests.integration.event_kit import SinkServer, books_at_rest, sink_server
from tests.integration.mirror_kit import server_config

SCAN = np.arange(64, dtype=np.float32)[np.newaxis]


def config(**sinks: dict[str, Any]) -> str:
    """Return a configuration that serves the model of the demo and has sinks of events."""
    found = yaml.safe_load(server_config())
    found["events"] = sinks
    return yaml.safe_dump(found)


def audit(sink: SinkServer, **keys: Any) -> dict[str, Any]:
    return {"url": sink.url, "payload": "full", **keys}


async def test_each_call_is_a_pair_whatever_the_client_spoke() -> None:
    """A sink gets the request and the reply of calls in all protocols as JSON of V2."""
    async with sink_server() as sink, running(config(audit=audit(sink))) as gateway:
        addresses = urls(gateway, "digits")
        for url in addresses.values():
            await ask(url, "digits", {"X": SCAN})
        await sink.wait_for(2 * len(addresses))
        pairs = sink.pairs()
        assert len(addresses) == len(pairs)
        for pair in pairs.values():
            (given,) = pair["request"]["inputs"]
            assert ("X", "FP32", [1, 64]) == (given["name"], given["datatype"], given["shape"])
            assert SCAN.ravel().tolist() == given["data"]
            assert ["label", "probabilities"] == [
                each["name"] for each in pair["response"]["outputs"]
            ]
            assert "digits" == pair["response"]["model_name"]
        books = await books_at_rest(gateway, lambda books: not books["audit"]["in_flight"])
        assert (len(sink.events), len(sink.events)) == (
            books["audit"]["sampled"],
            books["audit"]["delivered"],
        )
