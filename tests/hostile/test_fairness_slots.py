"""Slots are for work: clients that do not read, or send too much at once, do not hold them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.hostile import frames
from tests.hostile.fairness import LIVE, REPLIES, Innocents, fair_gateway, uint8
from tests.hostile.judge import good_call
from tests.hostile.process import Gateway
from tests.hostile.wire import GOOD, Raw, ask, head

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(120)]

_WINDOW_ZERO = struct.pack(">HI", 4, 0)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway of this module."""
    with fair_gateway() as found:
        yield found


def _calls(streams: int) -> bytes:
    """Write a connection of calls whose responses have no window."""
    message = frames.message(good_call())
    data = frames.PREFACE + frames.frame(frames.SETTINGS, payload=_WINDOW_ZERO)
    for stream in range(1, 2 * streams, 2):
        data += frames.opening(stream) + frames.body(message, stream)
    return data


@pytest.mark.needs("read_ahead")
def test_streams_without_a_window_hold_no_slot(gateway: Gateway) -> None:
    """Calls whose clients read a byte now and then hold no slot."""
    with ExitStack() as stack:
        socks = []
        for number in range(4):
            address = gateway.addresses["main.grpc"]
            sock = stack.enter_context(
                socket.create_connection(address, 8, (f"127.0.11.{1 + number}", 0))
            )
            sock.sendall(_calls(50))
            socks.append(sock)
        with Innocents(gateway) as others:
            for _ in range(5):
                others.await_replies(REPLIES // 5)
                drip = b"".join(
                    frames.frame(frames.WINDOW, 0, stream, b"\0\0\0\1")
                    for stream in range(1, 20, 2)
                )
                for sock in socks:
                    with suppress(OSError):
                        sock.sendall(drip)
        others.check()


def test_unread_responses_hold_no_slot(gateway: Gateway) -> None:
    """Connections with unread responses hold bytes and no slots; probes succeed everywhere."""
    data = uint8(300_000)
    with ExitStack() as stack:
        for number in range(80):
            raw = stack.enter_context(Raw(gateway.http, source=f"127.0.12.{1 + number % 8}"))
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.send([data])
        with Innocents(gateway) as others:
            others.await_replies(REPLIES)
            for address, path in (
                (gateway.http, "/v2/health/live"),
                (gateway.http, "/v2/health/ready"),
                (gateway.addresses["admin"], "/livez"),
            ):
                response = ask(address, head("GET", path, "Connection: close"), source="127.0.12.1")
                assert response is not None
                assert response.status == 200
        others.check()


def test_one_address_leaves_slots_to_others(gateway: Gateway) -> None:
    """1,000 calls of one client at once do not delay other clients, and probes need no slot."""
    with ExitStack() as stack:
        raws = [stack.enter_context(Raw(gateway.http, source="127.0.13.1")) for _ in range(1000)]
        with Innocents(gateway) as others:
            for _ in range(4):
                for raw in raws:
                    raw.send([GOOD])
                for raw in raws:
                    raw.answer()
            with Raw(gateway.http, source="127.0.13.1") as raw:
                raw.send([LIVE])
                response = raw.answer()
                assert response is not None
                assert response.status == 200
        others.check()
