"""Fair shares: an address with twenty times the load of nine others does not slow them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.hostile.fairness import fair_gateway
from tests.hostile.process import Gateway
from tests.hostile.wire import GOOD, Address, Raw, is_good
from tests.scheduling import delayed_s

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(120)]

_CLIENTS = 9
_PER_S = 10.0
"""Requests per second of each client: so few that this process is never what they wait for."""
_MEASURED_S = 4.0
_FACTOR = 20
_BATCH = 30
_CONNECTIONS = 4
_FLOOR_S = {"native": 0.02, "reference": 0.1}[os.environ.get("HOSTILE_TRANSPORT") or "native"]
"""A p99 below this is noise on a shared machine.

1800 requests per second are nearly all that the reference implementation can do on one core, so that
each request waits for some others whoever sent them.
"""
ATTEMPTS = 3
"""A busy machine may cost an attempt, or two."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway of this module."""
    with fair_gateway() as found:
        yield found


class Client:
    """Sends a request at fixed times, whenever the response before has come.

    Attributes:
        waits: Seconds until each response, without those for which the gateway had no processor.
    """

    def __init__(self, gateway: Gateway, source: str) -> None:
        self._address = gateway.http
        self._pid = gateway.process.pid
        self._source = source
        self.waits: list[float] = []

    def run(self) -> None:
        """Send for `_MEASURED_S`."""
        end = time.monotonic() + _MEASURED_S
        due = time.monotonic()
        with Raw(self._address, source=self._source) as raw:
            while due < end:
                time.sleep(max(0.0, due - time.monotonic()))
                delayed, started_s = delayed_s(self._pid), time.monotonic()
                raw.send([GOOD])
                assert is_good(raw.answer())
                waited_s = time.monotonic() - started_s
                self.waits.append(waited_s - max(0.0, delayed_s(self._pid) - delayed))
                due = max(due + 1 / _PER_S, time.monotonic())


class Greedy:
    """One address that sends twenty times what all others send, over a few connections.

    Attributes:
        count: Requests that it has sent.
    """

    def __init__(self, address: Address, source: str) -> None:
        self._address = address
        self._source = source
        self._done = threading.Event()
        self.count = 0

    def run(self) -> None:
        """Send until `stop`, as fast as it is served and no faster than its load."""
        pause_s = _BATCH * _CONNECTIONS / (_FACTOR * _CLIENTS * _PER_S)
        due = time.monotonic()
        with ExitStack() as stack:
            raws = [
                stack.enter_context(Raw(self._address, source=self._source))
                for _ in range(_CONNECTIONS)
            ]
            while not self._done.wait(max(0.0, due - time.monotonic())):
                due = max(due + pause_s, time.monotonic() - 1)
                for raw in raws:
                    raw.send([GOOD * _BATCH])
                    self.count += _BATCH
                for raw in raws:
                    _read(raw)

    def stop(self) -> None:
        """End `run`."""
        self._done.set()


def _read(raw: Raw) -> None:
    """Read the responses to one batch; a refusal counts as one."""
    found = 0
    with suppress(TimeoutError):
        while found < _BATCH:
            data = raw.socket.recv(1 << 18)
            if not data:
                return
            found += data.count(b"HTTP/1.1 ")


def _measured(gateway: Gateway) -> tuple[float, float]:
    """Return throughput and p99 of nine clients, each at its own address."""
    clients = [Client(gateway, f"127.0.20.{number}") for number in range(1, _CLIENTS + 1)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waits = sorted(wait for client in clients for wait in client.waits)
    return len(waits) / _MEASURED_S, waits[int(len(waits) * 0.99) - 1]


def _is_fair(gateway: Gateway) -> bool:
    """Measure nine clients alone and next to a greedy one, and judge the difference."""
    throughput, p99_s = _measured(gateway)
    greedy = Greedy(gateway.http, "127.0.21.1")
    thread = threading.Thread(target=greedy.run)
    thread.start()
    started_s = time.monotonic()
    try:
        throughput_beside, p99_beside_s = _measured(gateway)
    finally:
        took_s = time.monotonic() - started_s
        greedy.stop()
        thread.join()
    print(
        f"\n{throughput:.0f}/s, p99 {p99_s * 1e3:.1f} ms; beside {greedy.count / took_s:.0f}/s: "
        f"{throughput_beside:.0f}/s, p99 {p99_beside_s * 1e3:.1f} ms"
    )
    assert greedy.count / took_s > _CLIENTS * _PER_S
    is_enough = throughput_beside >= 0.9 * throughput
    return is_enough and p99_beside_s <= max(2 * p99_s, _FLOOR_S)


def test_nine_clients_keep_throughput_and_latency(gateway: Gateway) -> None:
    """They keep 90 % of their throughput, and their p99 at most doubles."""
    assert any(_is_fair(gateway) for _ in range(ATTEMPTS))
