"""Clients that do nothing wrong, while another tries to take the gateway for itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.hostile.process import Gateway, eventually, running
from tests.hostile.wire import GOOD, Raw, get, head, is_good, post
from tests.scheduling import delayed_s, slowness

CONFIG = Path(__file__).with_name("fair.yaml")
BUDGET_BYTES = 64 << 20
MAX_WAIT_S = 0.25
REPLIES = 150
"""Of all innocents, which takes them some 1.5 s."""
_EVERY_S = 0.02
_FEWEST = 3
_PATIENCE_S = 60.0
_SOURCES = ("127.0.7.1", "127.0.7.2")
_BODY_BYTES = 300_000


def uint8(size: int) -> bytes:
    """Write a request for identity_uint8 with a binary tensor of *size* bytes."""
    tensor = {
        "name": "INPUT0",
        "datatype": "UINT8",
        "shape": [size],
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT0"}]}).encode()
    return post(
        text + bytes(size),
        f"Inference-Header-Content-Length: {len(text)}",
        path="/v2/models/identity_uint8/infer",
    )


LIVE = head("GET", "/v2/health/live")


class Innocents:
    """Clients at other addresses that send a request now and then, and count how long each takes.

    The time for which the gateway had no processor does not count, and a machine that is slower than
    the one for which limits are may take more (`slowness`).
    """

    def __init__(self, gateway: Gateway) -> None:
        self._address = gateway.http
        self._pid = gateway.process.pid
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(source, data, name))
            for source, data, name in (
                (_SOURCES[0], GOOD, "small"),
                (_SOURCES[1], uint8(_BODY_BYTES), "large"),
                (_SOURCES[0], LIVE, "live"),
            )
        ]
        self._slow = slowness()
        self.waits: list[float] = []
        self.refused: list[tuple[str, object]] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        eventually(lambda: len(self.waits) > _FEWEST or bool(self.refused), _PATIENCE_S)
        self._done.set()
        for thread in self._threads:
            thread.join()
        self._slow = max(self._slow, slowness())

    def await_replies(self, count: int) -> None:
        """Wait until they have so many replies more, or one was rejected."""
        due = len(self.waits) + count
        assert eventually(lambda: len(self.waits) >= due or bool(self.refused), _PATIENCE_S)

    def _run(self, source: str, data: bytes, name: str) -> None:
        with Raw(self._address, source=source) as raw:
            raw.socket.settimeout(_PATIENCE_S)
            while not self._done.wait(_EVERY_S):
                delayed, started_s = delayed_s(self._pid), time.monotonic()
                try:
                    raw.send([data])
                    response = raw.answer()
                except TimeoutError:
                    response = None
                waited_s = time.monotonic() - started_s
                self.waits.append(waited_s - max(0.0, delayed_s(self._pid) - delayed))
                if response is None or response.status != 200:
                    self.refused.append((name, response and (response.status, response.body)))
                    return

    def check(self) -> None:
        """Assert that no request was rejected or waited for long."""
        assert [] == self.refused
        assert len(self.waits) > _FEWEST
        # One of them may have met another process of this machine.
        assert sorted(self.waits)[-2] <= MAX_WAIT_S * self._slow, (
            sorted(self.waits)[-5:],
            self._slow,
        )


def in_flight(gateway: Gateway) -> float:
    """Return the bytes in the gateway's metric."""
    page = get(gateway.addresses["admin"], "/metrics").decode()
    (line,) = [each for each in page.splitlines() if each.startswith("gateway_in_flight_bytes ")]
    return float(line.split()[1])


@contextmanager
def fair_gateway() -> Iterator[Gateway]:
    """Run a gateway that has served requests before; afterwards it must hold nothing."""
    with running(str(CONFIG)) as gateway:
        with Raw(gateway.http) as raw:
            for data in (GOOD, uint8(_BODY_BYTES), GOOD):
                raw.send([data])
                response = raw.answer()
                assert response is not None
                assert response.status == 200, response.body
        yield gateway
        assert gateway.alive
        assert eventually(lambda: in_flight(gateway) == 0, 60), in_flight(gateway)
        with Raw(gateway.http) as raw:
            raw.send([GOOD])
            assert is_good(raw.answer())
        assert "Traceback" not in gateway.text()
