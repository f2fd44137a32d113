"""Memory that one client announces, holds or leaves unread is not taken from others."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.hostile import frames
from tests.hostile.fairness import BUDGET_BYTES, REPLIES, Innocents, fair_gateway, uint8
from tests.hostile.process import Gateway
from tests.hostile.wire import Raw, post

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(120)]

MIB = 1 << 20
LARGEST = 16 * MIB
CONNECTIONS = 160
READ_AHEAD = 256_000 if os.environ.get("HOSTILE_TRANSPORT") == "reference" else 0
"""What aiohttp may read of a body before it asks for memory: one read of uvloop."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway of this module."""
    with fair_gateway() as found:
        yield found


def _watched(gateway: Gateway) -> Innocents:
    """Let others send requests, next to those that have begun."""
    with Innocents(gateway) as others:
        others.await_replies(REPLIES)
    return others


def test_announced_lengths_hold_no_memory(gateway: Gateway) -> None:
    """Eight heads that announce twice the budget hold next to none of it."""
    with ExitStack() as stack:
        for number in range(8):
            raw = stack.enter_context(Raw(gateway.http))
            raw.send([post(b"x" * (number % 2), length=LARGEST)])
        _watched(gateway).check()


def test_stalled_bodies_yield_to_other_clients(gateway: Gateway) -> None:
    """Bytes of stalled bodies from many addresses are released for waiting requests."""
    with ExitStack() as stack:
        raws = [
            stack.enter_context(Raw(gateway.http, source=f"127.0.8.{number}"))
            for number in range(1, 25)
        ]
        for raw in raws:
            raw.socket.settimeout(1)
            raw.send([post(b"", length=LARGEST) + bytes(3 * MIB)])
        time.sleep(0.3)
        _watched(gateway).check()


def test_announced_grpc_messages_hold_no_memory(gateway: Gateway) -> None:
    """Calls that send only the prefix of a large message do not delay others."""
    with ExitStack() as stack:
        for _ in range(2):
            sock = stack.enter_context(socket.create_connection(gateway.addresses["main.grpc"], 30))
            data = frames.BEGIN
            for stream in range(1, 120, 2):
                prefix = frames.message(b"x", length=LARGEST)
                data += frames.opening(stream) + frames.frame(frames.DATA, 0, stream, prefix)
            sock.sendall(data)
        _watched(gateway).check()


@pytest.mark.parametrize("name", ["streams.graphpipe.tcp", "brpc.grps.brpc"])
def test_announced_frames_hold_no_memory(gateway: Gateway, name: str) -> None:
    """The length of a frame reserves nothing by itself."""
    begin = struct.pack("<I", LARGEST - 100) + bytes(100)
    if "brpc" in name:
        begin = b"PRPC" + struct.pack(">II", LARGEST - 100, 20) + bytes(10)
    with ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(socket.create_connection(gateway.addresses[name], 30))
            sock.sendall(begin)
        _watched(gateway).check()


def test_unread_responses_stay_within_the_budget(gateway: Gateway) -> None:
    """Unread JSON of twice the size of its request stays within the budget."""
    memory = gateway.status("VmRSS")
    gateway.forget_peak()
    data = uint8(1_500_000)
    with ExitStack() as stack:
        raws = []
        for number in range(CONNECTIONS):
            source = f"127.0.9.{1 + number % 8}"
            raw = stack.enter_context(Raw(gateway.http, source=source))
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raws.append(raw)
        senders = [
            threading.Thread(target=_send_all, args=(raws[part::8], data)) for part in range(8)
        ]
        with Innocents(gateway) as others:
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            others.await_replies(REPLIES // 3)
        grown = gateway.status("VmHWM") - memory
        # Responses may exceed the budget by a quarter. The rest is what the allocator keeps of freed
        # memory, and one message that is in memory as elements and as JSON while it is written.
        bound = 1.7 * BUDGET_BYTES + CONNECTIONS * READ_AHEAD
        assert grown <= bound, f"{grown / MIB:.0f} MiB"
        # To write such a response takes the loop longer than to read its request.
        assert [] == others.refused


def _send_all(raws: list[Raw], data: bytes) -> None:
    for raw in raws:
        raw.send([data])


def test_incomplete_grpc_messages_stay_within_the_budget(gateway: Gateway) -> None:
    """Bytes admitted by the windows of streams count, too."""
    memory = gateway.status("VmRSS")
    gateway.forget_peak()
    size = 60_000
    call = frames.message(bytes(size - 1), length=size)
    with ExitStack() as stack:
        for number in range(40):
            source = (f"127.0.10.{1 + number % 10}", 0)
            address = gateway.addresses["main.grpc"]
            sock = stack.enter_context(socket.create_connection(address, 2, source))
            sock.settimeout(0.5)
            with suppress(OSError):
                sock.sendall(frames.BEGIN)
                for stream in range(1, 200, 2):
                    data = frames.opening(stream) + frames.body(call, stream, flags=0)
                    sock.sendall(data)
        _watched(gateway).check()
        grown = gateway.status("VmHWM") - memory
        assert grown <= 1.5 * BUDGET_BYTES, f"{grown / MIB:.0f} MiB"
