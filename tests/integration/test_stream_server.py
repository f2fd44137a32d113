"""The server for framed byte streams, over TCP and unix sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import stat
import struct
from functools import partial
from operator import contains
from pathlib import Path
from typing import Any

import pytest

from gateway.transports.contract import MemoryBudget, ServerLimits
from gateway.transports.stream.server import StreamServer
from gateway.transports.stream.server_connection import StreamConnection
from tests.integration.http_kit import eventually, stable
from tests.integration.stream_kit import (
    LOOPBACK,
    MOST,
    Big,
    Compressed,
    Counting,
    Echo,
    Raw,
    Running,
    Slow,
    Watched,
    framed,
    numbered,
    ordered,
    serving,
)

HELLO = framed(b"hello 123")


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address to listen on, over each carrier."""
    return f"unix:{tmp_path}/s" if request.param == "unix" else LOOPBACK


async def test_serves_every_frame_of_a_connection(address: str) -> None:
    """A connection carries one request after another."""
    async with serving(Echo(), address) as running:
        raw = await running.connect()
        found = []
        for name in (b"question1", b"question2"):
            await raw.send(framed(name))
            found.append(await raw.answer())
        await raw.close()
    assert [b"question1", b"question2"] == found


async def test_frames_in_single_bytes_are_read(address: str) -> None:
    """A frame may arrive byte by byte."""
    frontend = Echo()
    async with serving(frontend, address) as running:
        raw = await running.connect()
        for byte in HELLO + HELLO:
            await raw.send(bytes([byte]))
            await asyncio.sleep(0)
        found = [await raw.answer(), await raw.answer()]
        await raw.close()
    assert [b"hello 123"] * 2 == found == frontend.seen


async def test_pipelined_frames_are_served_in_order() -> None:
    """Responses keep the order of the requests, even of many at once."""
    names = [b"question %04d" % number for number in range(200)]
    async with serving(Echo(), pipelined_requests=4) as running:
        raw = await running.connect()
        await raw.send(b"".join(map(framed, names)))
        found = [await raw.answer() for _ in names]
        await raw.close()
    assert names == found


async def test_read_ahead_is_limited() -> None:
    """A client that only sends is paused by its socket, and memory does not grow."""
    frontend = Slow()
    async with serving(frontend, pipelined_requests=2) as running:
        raw = await running.connect()
        raw.writer.write(b"".join([framed(bytes(MOST - 8))] * 64))
        await eventually(lambda: bool(frontend.waiting))
        unsent = await stable(raw.writer.transport.get_write_buffer_size)
        used = running.budget.used
        raw.writer.transport.abort()
        await running.server.stop()
    assert unsent > 0
    assert used <= 4 * MOST


async def test_numbered_responses_are_sent_as_they_complete() -> None:
    """The response that is ready first is sent first, with its number."""
    frontend = Slow()
    async with serving(frontend, in_order=False) as running:
        raw = await running.connect()
        await raw.send(numbered(1, b"a") + numbered(0xFFFFFFFF, b"b"))
        await eventually(lambda: len(frontend.waiting) == 2)
        frontend.waiting[b"b"].set()
        first = await raw.numbered()
        frontend.waiting[b"a"].set()
        second = await raw.numbered()
        await raw.close()
    assert [(0xFFFFFFFF, b"answer b"), (1, b"answer a")] == [first, second]


async def test_concurrent_numbered_frames_are_limited() -> None:
    """One connection has no more requests in flight than the limit."""
    frontend = Slow()
    async with serving(frontend, in_order=False, h2_streams=3) as running:
        raw = await running.connect()
        await raw.send(b"".join(numbered(n, b"%d" % n) for n in range(10)))
        await eventually(lambda: len(frontend.waiting) == 3)
        found = []
        for number in range(10):
            await eventually(partial(contains, frontend.waiting, b"%d" % number))
            assert len(frontend.waiting) <= 3
            frontend.waiting[b"%d" % number].set()
            found.append((await raw.numbered())[0])
        await raw.close()
    assert list(range(10)) == found


async def test_half_closed_connection_gets_its_response(address: str) -> None:
    """A client that half-closes still gets a late response."""
    frontend = Slow()
    async with serving(frontend, address) as running:
        raw = await running.connect()
        await raw.send(HELLO)
        raw.writer.write_eof()
        await eventually(lambda: bool(frontend.waiting))
        await asyncio.sleep(0.15)  # longer than it takes to doubt that anybody is there
        frontend.waiting[b"hello 123"].set()
        found = await raw.answer()
        rest = await raw.rest()
        await raw.close()
    assert b"answer hello 123" == found.rstrip(b"\0")
    assert b"" == rest


async def test_prompt_response_to_a_half_closed_connection_is_unpadded() -> None:
    """A response that is ready at once has no padding."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        await raw.send(HELLO)
        raw.writer.write_eof()
        found = await raw.rest()
        await raw.close()
    assert HELLO == found


@pytest.mark.parametrize("reset", [True, False])
async def test_client_disconnect_cancels_its_request(address: str, reset: bool) -> None:
    """After a reset or a close the work ends."""
    frontend = Slow()
    async with serving(frontend, address) as running:
        raw = await running.connect()
        await raw.send(HELLO)
        await eventually(lambda: bool(frontend.waiting))
        if reset:
            sock = raw.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.writer.close()
        async with asyncio.timeout(20):
            await frontend.end.wait()
        assert [b"hello 123"] == frontend.cancelled
        await eventually(lambda: running.budget.used == 0)


@pytest.mark.parametrize("reset", [True, False])
async def test_disconnect_behind_unread_frames_cancels_the_request(
    address: str, reset: bool
) -> None:
    """A disconnect is noticed although reading is paused."""
    frontend = Slow()
    async with serving(frontend, address, pipelined_requests=1) as running:
        raw = await running.connect()
        await raw.send(HELLO)
        await eventually(lambda: bool(frontend.waiting))
        await raw.send(HELLO * 3)
        if reset:
            sock = raw.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.writer.close()
        async with asyncio.timeout(20):
            await frontend.end.wait()
        assert [b"hello 123"] == frontend.cancelled


async def test_invalid_framing_gets_an_error_and_is_closed(address: str) -> None:
    """The error follows the responses to earlier frames."""
    async with serving(Echo(), address) as running:
        found = await running.ask(HELLO + b"GET / HTTP/1.1\r\n\r\n" + HELLO)
    assert found.startswith(HELLO)
    assert b"refused invalid_argument: frame begins with 'GET '" in found


async def test_declared_size_over_the_limit_is_rejected_at_once() -> None:
    """The error is sent before the body arrives, and later bytes do not disturb it."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        await raw.send(struct.pack("<I", MOST + 1))
        found = await raw.answer()
        await raw.send(bytes(1000))
        rest = await raw.rest()
        await raw.close()
    assert found.startswith(b"refused message_bytes: frame declares 1048577 bytes")
    assert b"" == rest


async def test_truncated_frame_gets_an_error() -> None:
    """A stream that ends within a frame gets an error after the earlier responses."""
    frontend = Echo()
    async with serving(frontend) as running:
        raw = await running.connect()
        await raw.send(HELLO + HELLO[:7])
        raw.writer.write_eof()
        found = await raw.rest()
        await raw.close()
    assert found.startswith(HELLO)
    assert b"refused invalid_argument: stream ended" in found[len(HELLO) :]
    assert [b"hello 123"] == frontend.seen


async def test_framer_without_errors_closes_silently() -> None:
    """A framer that has no error frame closes the connection."""
    async with serving(Echo(), in_order=False) as running:
        found = await running.ask(numbered(1, b"a") + struct.pack("<II", MOST + 1, 2))
    assert numbered(1, b"a") == found


@pytest.mark.parametrize(
    ("sent", "limits", "limit"),
    [
        (HELLO[:9], {"body_idle_timeout_s": 0.05}, "body_idle_timeout_s"),
        (HELLO[:9], {"body_timeout_s": 0.05}, "body_timeout_s"),
        (HELLO[:2], {"body_min_rate_grace_s": 0.05}, "body_min_rate_bytes_s"),
    ],
)
async def test_slow_frame_is_rejected(sent: bytes, limits: dict[str, Any], limit: str) -> None:
    """A frame that arrives too slowly gets an error, and the connection is closed."""
    async with serving(Echo(), **limits) as running:
        found = await running.ask(sent)
    assert f"refused {limit}: a frame came too slowly: {len(sent)} of".encode() in found


async def test_frame_below_the_minimum_rate_is_rejected() -> None:
    """Occasional bytes do not keep a frame alive."""
    async with serving(Echo(), body_min_rate_grace_s=0.1, body_idle_timeout_s=5.0) as running:
        raw = await running.connect()
        reading = asyncio.ensure_future(raw.rest())
        await raw.send(struct.pack("<I", 1000))
        while not reading.done():
            raw.writer.write(b"x")
            await asyncio.wait([reading], timeout=0.02)
        found = reading.result()
        await raw.close()
    assert b"refused body_min_rate_bytes_s: a frame came too slowly" in found


async def test_idle_connection_is_closed(address: str) -> None:
    """Between frames a client may be silent for `keepalive_s`, and no longer."""
    async with serving(Echo(), address, keepalive_s=0.05) as running:
        found = await running.ask(HELLO)
    assert HELLO == found


async def test_connection_without_a_frame_is_closed() -> None:
    """The first frame must begin within `header_timeout_s`."""
    async with serving(Echo(), header_timeout_s=0.05) as running:
        found = await running.ask(b"")
        assert ["header_timeout_s"] == running.limits_hit
    assert b"" == found


async def test_slow_response_is_not_idle_time() -> None:
    """The client's timeouts do not run while its response is pending."""
    frontend = Slow()
    limits: dict[str, Any] = {
        "keepalive_s": 0.5,
        "header_timeout_s": 0.5,
        "body_idle_timeout_s": 0.5,
    }
    async with serving(frontend, **limits) as running:
        raw = await running.connect()
        await raw.send(HELLO)
        await eventually(lambda: bool(frontend.waiting))
        await asyncio.sleep(0.7)
        frontend.waiting[b"hello 123"].set()
        found = await raw.answer()
        await raw.close()
    assert b"answer hello 123" == found


async def test_unread_response_is_cut() -> None:
    """A response that is not read is aborted after `write_idle_timeout_s`."""
    async with serving(Big(64 << 20), write_idle_timeout_s=0.1) as running:
        raw = await running.connect()
        await raw.send(HELLO)
        await eventually(lambda: running.limits_hit == ["write_idle_timeout_s"])
        await eventually(lambda: running.budget.used == 0)
        await raw.close()


async def test_unread_numbered_responses_count_in_the_budget() -> None:
    """Waiting responses hold a bounded part of the memory budget.

    While responses wait, no further request runs: the number of rejections depends on the number
    of requests that ran before.
    """
    frontend, size = Counting(MOST), 40
    async with serving(frontend, in_order=False, budget_bytes=8 * MOST, h2_streams=size) as running:
        raw = await running.connect()
        await raw.send(b"".join(numbered(n, b"x") for n in range(size)))
        await eventually(lambda: running.budget.used >= MOST)
        (connection,) = running.server._listener.connections
        assert isinstance(connection, StreamConnection)
        await eventually(connection.writer.is_blocked)
        used = running.budget.used
        found = [await raw.numbered() for _ in range(size)]
        await raw.close()
    answered = [response for _, response in found if len(response) == MOST]
    refused = {response[:24] for _, response in found if len(response) != MOST}
    assert used <= 10 * MOST  # all of the budget while nobody waits, and a quarter for responses
    assert len(answered) >= 4
    assert size == len(found)
    assert refused <= {b"refused in_flight_bytes:"}


async def test_unread_responses_pause_further_requests() -> None:
    """Requests wait while responses are unread, and run when they are read."""
    frontend = Counting(16 * MOST)
    async with serving(frontend, in_order=False) as running:
        raw = await running.connect()
        await raw.send(numbered(0, b"x"))
        await eventually(lambda: bool(running.server._listener.connections))
        (connection,) = running.server._listener.connections
        assert isinstance(connection, StreamConnection)
        await eventually(connection.writer.is_blocked)
        await raw.send(b"".join(numbered(n, b"x") for n in range(1, 6)))
        await eventually(lambda: connection.in_flight == 6)
        call_count = frontend.call_count
        found = [(await raw.numbered())[0] for _ in range(6)]
        await raw.close()
    assert (1, 6) == (call_count, frontend.call_count)
    assert list(range(6)) == sorted(found)


async def test_unread_responses_are_freed_at_once() -> None:
    """Responses to a client that is cut are freed without the garbage collector."""
    frontend = Watched(MOST)
    gc.disable()
    try:
        async with serving(frontend, in_order=False, write_idle_timeout_s=0.1) as running:
            raw = await running.connect()
            # More than the buffers of the kernel hold: tcp_rmem allows 32 MiB on some machines.
            await raw.send(b"".join(numbered(n, b"x") for n in range(64)))
            await eventually(lambda: running.limits_hit == ["write_idle_timeout_s"])
            await eventually(lambda: not running.server._listener.connections)
            await raw.close()
            await eventually(lambda: all(response() is None for response in frontend.answers))
    finally:
        gc.enable()
    assert len(frontend.answers) > 5


async def test_connections_are_limited(address: str) -> None:
    """One over the limit gets an error and is closed; a closed one makes room for another."""
    async with serving(Echo(), address, connections=1) as running:
        first = await running.connect()
        await first.send(HELLO)
        assert b"hello 123" == await first.answer()
        assert (await running.ask(HELLO))[4:].startswith(
            b"refused connections: too many connections"
        )
        await first.close()
        await eventually(lambda: not running.server._listener.connections)
        again = await running.connect()
        await again.send(HELLO)
        assert b"hello 123" == await again.answer()
        await again.close()


async def test_connections_per_address_are_limited() -> None:
    """One client cannot hold all connections."""
    async with serving(Echo(), connections_per_address=1) as running:
        first = await running.connect()
        await first.send(HELLO)
        await first.answer()
        refused = b"refused connections_per_address: too many connections from 127.0.0.1"
        assert (await running.ask(HELLO))[4:].startswith(refused)
        await first.close()


async def test_rejected_connection_gets_the_number_of_its_frame() -> None:
    """Where responses carry the request's number, the first frame is read for it."""
    async with serving(Echo(), in_order=False, connections=1) as running:
        first = await running.connect()
        await first.send(numbered(1, b"first"))
        await first.numbered()
        late = await running.connect()
        frame = numbered(7, b"hello")
        await late.send(frame[:5])
        await late.send(frame[5:])
        number, text = await late.numbered()
        assert (7, b"refused connections") == (number, text[:19])
        await first.close()
        await late.close()


@pytest.mark.parametrize("sent", [struct.pack("<II", MOST + 1, 0), numbered(7, bytes(70_000))])
async def test_rejected_connection_with_a_large_frame_is_closed(sent: bytes) -> None:
    """The gateway reads only a small first frame of it."""
    async with serving(Echo(), in_order=False, connections=1) as running:
        first = await running.connect()
        await first.send(numbered(1, b"first"))
        await first.numbered()
        late = await running.connect()
        await late.send(sent[:66_000])
        assert b"" == await late.rest()
        await first.close()
        await late.close()


async def test_frame_over_the_limit_is_rejected_on_an_open_connection() -> None:
    """The error concerns one frame; the connection stays usable."""
    frontend = Slow()
    limits: dict[str, Any] = {"requests_in_flight": 1, "requests_queued": 0}
    async with serving(frontend, **limits) as running:
        first, second = await running.connect(), await running.connect()
        await first.send(HELLO)
        await eventually(lambda: bool(frontend.waiting))
        await second.send(HELLO)
        refusal = await second.answer()
        frontend.waiting[b"hello 123"].set()
        await first.answer()
        await second.send(framed(b"another question"))
        await eventually(lambda: b"another question" in frontend.waiting)
        frontend.waiting[b"another question"].set()
        found = await second.answer()
        await first.close()
        await second.close()
    assert refusal.startswith(b"refused requests_in_flight")
    assert b"answer another question" == found


async def test_budget_counts_received_bytes_with_a_step_ahead() -> None:
    """The budget counts a frame as it arrives, not as declared, until its response is sent."""
    async with serving(Echo(), budget_bytes=32 << 20) as running:
        raw = await running.connect()
        await raw.send(struct.pack("<I", 900_000))
        await eventually(lambda: running.budget.used == 512 << 10)
        await raw.send(bytes(500_000))
        await eventually(lambda: running.budget.used == 900_004)
        await raw.send(bytes(400_000))
        await raw.answer()
        await eventually(lambda: running.budget.used == 0)
        await raw.close()


async def test_frame_of_a_lost_connection_is_not_handled() -> None:
    """A frame whose client disconnects in the same loop turn is not handled or counted."""
    frontend = Echo()
    async with serving(frontend) as running:
        raw = await running.connect()
        await raw.send(struct.pack("<I", 500_000) + bytes(300_000))
        await eventually(lambda: running.budget.used == 500_004)
        (connection,) = running.server._listener.connections
        assert isinstance(connection, StreamConnection)
        connection.data_received(bytes(200_000))
        connection.connection_lost(None)
        await eventually(lambda: running.budget.used == 0)
        await raw.close()
    assert not frontend.seen


async def test_frame_over_the_memory_budget_is_rejected() -> None:
    """The sender gets an error, and its connection stays usable."""
    async with serving(Echo(), budget_bytes=1000, queue_wait_s=0.02) as running:
        first_refusal = await running.ask(struct.pack("<I", 5000))
        whole = await running.connect()
        await whole.send(framed(bytes(2000)))
        refusal = await whole.answer()
        await whole.send(HELLO)
        found = await whole.answer()
        await whole.close()
    assert b"refused in_flight_bytes" in first_refusal
    assert refusal.startswith(b"refused in_flight_bytes")
    assert b"hello 123" == found


async def test_decompressed_size_counts_in_the_budget() -> None:
    """A small frame is rejected when its decompressed content exceeds the budget."""
    frontend = Echo()
    async with serving(
        frontend, in_order=False, framer=Compressed, budget_bytes=MOST, queue_wait_s=0.02
    ) as running:
        raw = await running.connect()
        await raw.send(numbered(MOST, b"x"))
        refusal = await raw.numbered()
        await raw.send(numbered(MOST // 2, b"y"))
        found = await raw.numbered()
        await raw.close()
    assert refusal[1].startswith(b"refused in_flight_bytes")
    assert ((MOST // 2, b"y"), [b"y"]) == (found, frontend.seen)


async def test_frame_waits_for_free_memory() -> None:
    """A frame is read when memory is released in time."""
    async with serving(Echo(), budget_bytes=1000, queue_wait_s=5.0) as running:
        assert running.budget.try_acquire(900)
        raw = await running.connect()
        await raw.send(framed(bytes(500))[:100])
        await eventually(lambda: running.budget.queued == 1)
        running.budget.release(900)
        await raw.send(framed(bytes(500))[100:])
        found = await raw.answer()
        await raw.close()
    assert bytes(500) == found


async def test_drain_finishes_requests_in_flight(address: str) -> None:
    """A busy connection gets its response and ends; idle ones end at once."""
    frontend = Slow()
    async with serving(frontend, address) as running:
        idle, busy = await running.connect(), await running.connect()
        await busy.send(HELLO)
        await eventually(lambda: bool(frontend.waiting))
        await eventually(lambda: len(running.server._listener.connections) == 2)
        drained = asyncio.ensure_future(running.server.drain(5.0))
        assert b"" == await idle.rest()
        with pytest.raises(OSError, match=r"refused|failed|No such file"):
            await running.connect()
        frontend.waiting[b"hello 123"].set()
        found = await busy.rest()
        await drained
        await idle.close()
        await busy.close()
    assert framed(b"answer hello 123") == found


@pytest.mark.parametrize("in_order", [True, False])
async def test_drain_sends_an_error_after_its_time(in_order: bool) -> None:
    """A request that exceeds the drain time gets an error in the protocol's form."""
    frontend = Slow()
    async with serving(frontend, in_order=in_order) as running:
        raw = await running.connect()
        await raw.send(HELLO if in_order else numbered(7, b"hello 123"))
        await eventually(lambda: bool(frontend.waiting))
        await running.server.drain(0.02)
        found = await raw.rest()
        await raw.close()
    refusal = b"refused unavailable: the gateway is shutting down"
    assert (framed(refusal) if in_order else numbered(7, refusal)) == found
    assert [b"hello 123"] == frontend.cancelled


async def test_drain_finishes_a_partial_frame() -> None:
    """A frame that has begun is read and served."""
    async with serving(Echo()) as running:
        raw = await running.connect()
        await raw.send(HELLO[:6])
        await eventually(lambda: running.budget.used > 0)
        drained = asyncio.ensure_future(running.server.drain(5.0))
        await asyncio.sleep(0)
        await raw.send(HELLO[6:])
        found = await raw.rest()
        await drained
        await raw.close()
    assert HELLO == found


@pytest.mark.parametrize("in_order", [True, False])
async def test_drain_serves_a_frame_in_the_kernel_buffer(in_order: bool) -> None:
    """An idle connection with an unread frame is not reset."""
    frame = HELLO if in_order else numbered(7, b"hello 123")
    loop = asyncio.get_running_loop()
    async with serving(Echo(), in_order=in_order) as running, asyncio.timeout(20):
        host, _, port = running.server.address.rpartition(":")
        with socket.create_connection((host, int(port))) as kept:
            kept.setblocking(False)
            kept.send(frame)
            assert frame == await loop.sock_recv(kept, 4096)
            kept.send(frame)  # the loop has no turn to read it
            for connection in list(running.server._listener.connections):
                connection.drain()
            assert frame == await loop.sock_recv(kept, 4096)
            assert b"" == await loop.sock_recv(kept, 4096)


async def test_drain_rejects_new_numbered_frames() -> None:
    """A shared connection stays until its responses are sent, and rejects new requests."""
    frontend = Slow()
    async with serving(frontend, in_order=False) as running:
        raw = await running.connect()
        await raw.send(numbered(1, b"a"))
        await eventually(lambda: bool(frontend.waiting))
        drained = asyncio.ensure_future(running.server.drain(5.0))
        # The accept queue is emptied first: until then, the connection serves as before.
        (connection,) = running.server._listener.connections
        assert isinstance(connection, StreamConnection)  # to see its state
        await eventually(lambda: connection.state.name == "DRAINING")
        await raw.send(numbered(2, b"b"))
        refusal = await raw.numbered()
        frontend.waiting[b"a"].set()
        found = await raw.numbered()
        rest = await raw.rest()
        await raw.close()
        await drained
    assert (2, b"refused unavailable: the gateway is shutting down") == refusal
    assert (1, b"answer a") == found
    assert b"" == rest


async def test_stop_is_repeatable(address: str) -> None:
    """A server may be stopped twice, and with requests in flight."""
    frontend = Slow()
    async with serving(frontend, address) as running:
        raw = await running.connect()
        await raw.send(HELLO)
        await eventually(lambda: bool(frontend.waiting))
        await running.server.stop()
        await running.server.stop()
        assert [b"hello 123"] == frontend.cancelled
        assert b"" == await raw.rest()
        await raw.close()


def another(address: str) -> StreamServer:
    return StreamServer(address, ordered, Echo(), limits=ServerLimits(), budget=MemoryBudget(1000))


async def test_address_in_use_raises_with_the_address(address: str) -> None:
    """The error names the address and the reason."""
    async with serving(Echo(), address) as running:
        held_address = running.server.address
        with pytest.raises(OSError, match=f"cannot listen on {held_address}: ") as found:
            await another(held_address).start()
        assert HELLO == await is_serving(running)
    assert "Errno 98" in str(found.value)


async def is_serving(running: Running) -> bytes:
    raw: Raw = await running.connect()
    await raw.send(HELLO)
    try:
        return framed(await raw.answer())
    finally:
        await raw.close()


async def test_unknown_host_raises_with_the_address() -> None:
    """A name without an address raises an error that names it."""
    with pytest.raises(OSError, match=r"cannot listen on no-such-host\.invalid:1: [A-Z]"):
        await another("no-such-host.invalid:1").start()


async def test_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    """The file of a killed server does not prevent a start."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(Echo(), f"unix:{path}") as running:
        assert HELLO == await is_serving(running)
    assert not path.exists()


async def test_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """The server deletes only sockets."""
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="the path is a file and not a socket"):
        await another(f"unix:{path}").start()
    assert "precious" == path.read_text()


async def test_socket_path_over_the_limit_raises(tmp_path: Path) -> None:
    """The error names the kernel's limit."""
    with pytest.raises(OSError, match="longer than 107 bytes"):
        await another(f"unix:{tmp_path}/{'s' * 200}").start()


async def test_missing_socket_folder_raises(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(OSError, match="nowhere/s: No such file or directory"):
        await another(f"unix:{tmp_path}/nowhere/s").start()


async def test_socket_file_has_the_configured_mode(tmp_path: Path) -> None:
    """The mode restricts the users that can connect; the default is 0660."""
    path = tmp_path / "s"
    async with serving(Echo(), f"unix:{path}", mode=0o600):
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    async with serving(Echo(), f"unix:{path}"):
        assert 0o660 == stat.S_IMODE(path.stat().st_mode)


async def test_replaced_socket_file_is_not_removed(tmp_path: Path) -> None:
    """Closing removes the server's own file, not a replacement."""
    path = tmp_path / "s"
    async with serving(Echo(), f"unix:{path}"):
        path.unlink()
        path.write_text("another's")
    assert "another's" == path.read_text()
