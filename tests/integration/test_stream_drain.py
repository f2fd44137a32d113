"""Stopping a gateway with open streams: running ones finish, and waiting ones do not delay it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.cli_kit import Running, serving
from tests.matrix.streams import OipGrpc, channel_to, stream_of

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0", transport: {transport}}}]
admin: {{address: null, metrics: null}}
models:
  speak: {{backend: python, options: {{callable: "gateway.backends.examples:speak"}}}}
lifecycle: {{pre_stop: 0s, drain: 60s}}
"""
WORDS = 20


@pytest.fixture(params=["reference", "native"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """A gateway with a minute for running calls."""
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(transport=request.param))
    with serving(str(config)) as running:
        yield running


def test_stop_finishes_running_streams_and_ends_waiting_ones(gateway: Running) -> None:
    """The running stream is complete; the waiting one gets UNAVAILABLE, long before `drain` ends."""
    done = threading.Event()

    def waits() -> Iterator[Any]:
        yield OipGrpc.question("speak", "word", "1")
        done.wait(60)

    with channel_to(gateway) as idle_channel, channel_to(gateway) as busy_channel:
        idle = stream_of(idle_channel)(waits())
        assert "word" == OipGrpc.read_answer(next(idle)).word
        busy = stream_of(busy_channel)(iter([OipGrpc.question("speak", "word " * WORDS, "2")]))
        next(busy)
        gateway.process.terminate()
        began = time.monotonic()
        assert WORDS == 1 + sum(1 for _ in busy)
        with pytest.raises(grpc.RpcError) as caught:
            next(idle)
        done.set()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert 0 == gateway.process.wait(60)
    assert time.monotonic() - began < 40
