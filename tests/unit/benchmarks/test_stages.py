"""The costs of stages: the whole gateway on in-memory connections, measured in parts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from benchmarks.stages import (
    CONNECTION,
    Bench,
    Way,
    first_ways,
    measure,
    profile,
    run,
    ways,
)
from benchmarks.wires import MemoryLoop

_BEYOND_THE_MODEL = {"upstream", "encode_call", "client transport", "canned server", "decode_reply"}


@pytest.mark.parametrize("way", ways(), ids=lambda way: way.name)
def test_splits_a_request_into_stages(way: Way) -> None:
    """Each way has every stage between its ends, and their sum is the whole."""
    rows = measure(way.name, lambda _text: None, batches=1)
    found = {row.stage: row.us for row in rows}
    ends = {"loop and load", "server transport", "decode_call", "frontend", "encode_reply"}
    far = {"model"} if way.back is None else _BEYOND_THE_MODEL
    assert ends | far <= found.keys()
    assert {"- Observe", "- Router", "- CallLimits"} <= found.keys()
    parts = [us for stage, us in found.items() if stage[0] not in "-(" and stage != "whole"]
    assert pytest.approx(found["whole"]) == sum(parts)
    assert found["whole"] > 0


def test_profiles_the_functions_of_a_request() -> None:
    """The profile of a way has functions of the gateway."""
    found = profile("json-noop", lambda _text: None, requests=320)
    assert "json-noop, 320 requests" in found
    assert "frontend.py" in found


@pytest.mark.parametrize("way", first_ways(), ids=lambda way: way.name)
def test_first_requests_are_sent_at_their_moment(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a connection of its own, or the requests share connections."""
    connections = itertools.count()
    join = MemoryLoop.join

    def counted(*arguments: Any) -> Any:
        next(connections)
        return join(*arguments)

    monkeypatch.setattr(MemoryLoop, "join", counted)

    async def send(bench: Bench) -> None:
        requests = bench.load()
        await requests(64)
        await requests(64)

    run(way, send)
    assert next(connections) == (128 if way.moment == CONNECTION else 32)
