"""Bodies that move from socket to socket: unchanged to the bit, whatever ends or interrupts them."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import inspect
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.transports.contract import ClientLimits
from gateway.transports.http1.client import HttpClient
from gateway.transports.http1.server_connection import Http1ServerConnection
from gateway.transports.http1.splice import PIPE_BYTES
from gateway.transports.net import sockets
from tests.integration.cut_kit import MIB, Far, Near, near, request, response_of
from tests.integration.http_kit import Raw, eventually, stable

pytestmark = pytest.mark.skipif(not hasattr(os, "splice"), reason="there is no splice here")

FIRST_READ = 64 * 1024
RANDOM = random.Random(45)  # noqa: S311  # repeatable

Step = Callable[[bool, int, int], int]
"""Returns how many bytes may move: into the pipe or out of it, of so many, in the n-th call."""


class Moves:
    """What went through `os.splice`.

    Attributes:
        piped: Bytes into pipes.
        passed: Bytes out of them.
        calls: Calls of it.
        read: Bytes that connections of clients have read.
    """

    def __init__(self, step: Step) -> None:
        self.piped = self.passed = self.calls = self.read = 0
        self._step = step
        self._splice = os.splice

    def splice(self, source: int, target: int, count: int, *, flags: int) -> int:
        fills = stat.S_ISSOCK(os.fstat(source).st_mode)
        self.calls += 1
        moved = self._splice(source, target, self._step(fills, count, self.calls), flags=flags)
        if fills:
            self.piped += moved
        else:
            self.passed += moved
        return moved


@contextmanager
def moves(step: Step = lambda _fills, count, _number: count) -> Iterator[Moves]:
    """Count what moves, and let *step* interfere. No descriptor is left at the end."""
    seen, before = Moves(step), pipes()
    updated = Http1ServerConnection.buffer_updated

    def counted(connection: Http1ServerConnection, nbytes: int) -> None:
        seen.read += nbytes
        updated(connection, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "splice", seen.splice)
        patch.setattr(Http1ServerConnection, "buffer_updated", counted)
        yield seen
    assert before == pipes()


def pipes() -> int:
    """Return how many ends of pipes the process has."""
    return sum(each.startswith("pipe:") for each in descriptors())


def descriptors() -> list[str]:
    """Return what the descriptors of the process are of: sockets, pipes, files."""
    return [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


async def ask(raw: Raw, size: int) -> tuple[int, bytes]:
    """Send a body of random bytes in random pieces; return the status, and the body."""
    head, body = request(("a", "UINT8", os.urandom(size)))
    data = head + body
    at = 0
    while at < len(data):
        stop = at + RANDOM.choice((1, 100, 5_000, 70_000, 400_000, 2_000_000))
        await raw.send(data[at:stop])
        at = stop
        if not RANDOM.randrange(4):
            await asyncio.sleep(RANDOM.random() / 200)
    return (await response_of(raw)).status, body


async def several(gateway: Near, far: Far, rounds: int) -> None:
    """Send bodies on several connections at once; each arrives to the bit."""

    async def one() -> list[bytes]:
        raw = await gateway.connect()
        bodies = []
        for _ in range(rounds):
            status, body = await ask(raw, RANDOM.randrange(100_000, 3_000_000))
            assert 200 == status
            bodies.append(body)
        await raw.close()
        return bodies

    sent = [body for bodies in await asyncio.gather(one(), one(), one()) for body in bodies]
    assert sorted(sent) == sorted(seen.binary for seen in far.seen)


async def test_body_bytes_after_the_first_read_never_enter_the_process() -> None:
    """A client on a connection that is kept sends 16 MiB: the process reads its first 64 KiB."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        head, body = request(("a", "UINT8", os.urandom(16 * MIB)))
        with moves() as seen:
            raw = await gateway.connect()
            for _ in range(2):
                await raw.send(head + body)
                assert 200 == (await response_of(raw)).status
        await raw.close()
    assert [body, body] == [each.binary for each in far.seen]
    assert seen.piped == seen.passed
    assert 2 * len(head + body) == seen.read + seen.passed
    assert seen.read <= 2 * FIRST_READ
    assert 1 == far.connections


async def test_random_bodies_are_forwarded_unchanged() -> None:
    """Sizes and pieces are random, on three connections at once."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        with moves() as seen:
            await several(gateway, far, 8)
    assert seen.passed > MIB


async def test_short_and_blocked_splices_continue() -> None:
    """A move of fewer bytes than there are goes on; so does one that had to wait for no reason."""

    def step(_fills: bool, count: int, _number: int) -> int:
        if not RANDOM.randrange(5):
            raise BlockingIOError
        return RANDOM.randint(1, count) if RANDOM.randrange(2) else count

    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        with moves(step) as seen:
            await several(gateway, far, 4)
    assert seen.piped == seen.passed > MIB


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("fills", [True, False], ids=["into the pipe", "out of the pipe"])
@pytest.mark.parametrize("number", [1, 4])
def test_failing_splices_fall_back_to_copies(run: Any, fills: bool, number: int) -> None:
    """What a refused move leaves in the pipe goes first; the rest is read and written."""
    done = [0, 0]

    def step(into: bool, count: int, _number: int) -> int:
        done[into] += 1
        if into == fills and done[into] >= number:
            raise OSError(errno.EINVAL, "not here")
        return min(count, 10_000)

    async def scene() -> None:
        async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
            raw = await gateway.connect()
            with moves(step) as seen:
                for _ in range(3):
                    status, body = await ask(raw, 3 * MIB)
                    assert 200 == status
                    assert body == far.seen[-1].binary
            await raw.close()
        assert seen.passed <= 10_000 * number
        assert 3 * done[fills] >= number

    run(scene())


async def test_failing_pipes_fall_back_to_copies() -> None:
    """Where the pipe cannot be made, bodies are read and written."""

    def refused(*_arguments: int) -> int:
        raise PermissionError(errno.EPERM, "too many pages")

    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        with moves() as seen, pytest.MonkeyPatch.context() as patch:
            patch.setattr(fcntl, "fcntl", refused)
            status, body = await ask(raw, 3 * MIB)
        await raw.close()
    assert 200 == status
    assert body == far.seen[0].binary
    assert not seen.calls


async def cut_short(leave: Callable[[Raw], None]) -> None:
    """Let a client *leave* within its body: the upstream is reset, and no descriptor is left."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        head, body = request(("a", "UINT8", os.urandom(8 * MIB)))
        before = len(descriptors())
        with moves() as seen:
            raw = await gateway.connect()
            await raw.send(head + body[: 3 * MIB])
            await eventually(lambda: bool(far.seen))
            await stable(lambda: seen.passed)
            leave(raw)
            async with asyncio.timeout(20):
                await far.seen[0].end.wait()
            await raw.close()
            await eventually(lambda: len(descriptors()) == before)
        assert seen.passed > 2 * MIB
    assert far.seen[0].on_reset
    assert not far.seen[0].on_complete_stream


async def test_client_reset_resets_the_upstream() -> None:
    """The upstream does not take what it has for the whole body."""
    await cut_short(lambda raw: raw.writer.transport.abort())


async def test_half_close_within_a_body_resets_the_upstream() -> None:
    """The end of the input within a body is not the end of the body."""
    await cut_short(lambda raw: raw.writer.write_eof())


async def test_client_disconnect_is_noticed_while_the_upstream_is_full() -> None:
    """Nothing arrives from the client any more, and nothing can be sent: neither waits for ever."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        far.reads.clear()
        head, body = request(("a", "UINT8", bytes(48 * MIB)))
        with moves() as seen, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sockets, "_USER_TIMEOUT_MS", 1000)  # instead of 30 s
            raw = await gateway.connect()
            sending = asyncio.ensure_future(raw.send(head + body))
            await eventually(lambda: bool(far.seen))
            await stable(lambda: seen.passed)
            assert PIPE_BYTES >= seen.piped - seen.passed > 0
            raw.writer.transport.abort()
            await asyncio.gather(sending, return_exceptions=True)
            await eventually(lambda: not gateway.budget.used)
            far.reads.set()
            async with asyncio.timeout(20):
                await far.seen[0].end.wait()
    assert not far.seen[0].on_complete_stream


async def test_slow_upstream_does_not_time_out_the_client() -> None:
    """The limits of the client's pace do not count the time in which the upstream is full."""
    limits: dict[str, Any] = {"body_idle_timeout_s": 0.3, "body_min_rate_grace_s": 0.3}
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits()), **limits) as gateway:
        far.reads.clear()
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(32 * MIB)))
        with moves() as seen:
            sending = asyncio.ensure_future(raw.send(head + body))
            await eventually(lambda: bool(far.seen))
            await stable(lambda: seen.passed, 1.0)
            far.reads.set()
            await sending
            response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert body == far.seen[0].binary


async def test_client_below_the_minimum_rate_is_408() -> None:
    """Bytes that the process does not see count for the rate, and too few of them end the call."""
    limits: dict[str, Any] = {"body_min_rate_grace_s": 0.2, "body_min_rate_bytes_s": 2 * MIB}
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits()), **limits) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(8 * MIB)))
        with moves() as seen:
            await raw.send(head + body[:MIB])
            for at in range(200):
                if gateway.refused:
                    break
                await raw.send(body[MIB + 1000 * at : MIB + 1000 * (at + 1)])
                await asyncio.sleep(0.02)
            response = await response_of(raw)
            assert seen.passed > MIB // 2
            async with asyncio.timeout(20):
                await far.seen[0].end.wait()
        await raw.close()
    assert 408 == response.status
    assert ["body_min_rate_bytes_s"] == [error.limit for error in gateway.refused]
    assert far.seen[0].on_reset


async def test_spliced_bytes_count_for_the_minimum_rate() -> None:
    """Bytes that the process does not see count: this client would else be idle and too slow."""
    limits: dict[str, Any] = {"body_min_rate_grace_s": 1.0, "body_idle_timeout_s": 1.0}
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits()), **limits) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(8 * MIB)))
        data = head + body
        with moves() as seen:
            for at in range(0, len(data), MIB // 2):
                await raw.send(data[at : at + MIB // 2])
                await asyncio.sleep(0.1)
            response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert body == far.seen[0].binary
    assert seen.passed > 7 * MIB


async def test_half_closed_client_receives_its_response() -> None:
    """A client may end its side behind its body, before the upstream has read all of it."""
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(16 * MIB)))
        with moves() as seen:
            await raw.send(head + body)
            raw.writer.write_eof()
            response = await response_of(raw)
        await raw.close()
    assert 200 == response.status
    assert body == far.seen[0].binary
    assert seen.passed > 15 * MIB


async def test_early_response_of_a_closed_upstream_is_relayed() -> None:
    """It reads a part, answers and resets: the client gets that answer, not a lost connection."""
    refusal = b'{"error": "too much for me"}'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(MIB)
        head = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(refusal) + refusal)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with near(lambda: HttpClient(url, ClientLimits())) as gateway:
        with moves() as seen:
            for _ in range(5):
                raw = await gateway.connect()
                head, body = request(("a", "UINT8", os.urandom(16 * MIB)))
                sending = asyncio.ensure_future(raw.send(head + body))
                response = await response_of(raw)
                await asyncio.gather(sending, return_exceptions=True)
                await raw.close()
                assert (400, "too much for me") == (response.status, response.json["error"])
    server.close()
    assert seen.passed > MIB


async def test_client_connection_is_reused_after_an_early_response() -> None:
    """The rest of a body that was answered early is dropped, with what was in the pipe."""
    refusal = b'{"error": "no"}'
    async with Far() as far, near(lambda: HttpClient(far.url, ClientLimits())) as gateway:
        raw = await gateway.connect()
        head, body = request(("a", "UINT8", os.urandom(24 * MIB)))
        with moves() as seen:
            far.reads.clear()
            sending = asyncio.ensure_future(raw.send(head + body))
            await eventually(lambda: bool(far.seen))
            await stable(lambda: seen.passed)
            far.early = b"HTTP/1.1 409 Conflict\r\nContent-Length: 15\r\n\r\n" + refusal
            far.writers[0].write(far.early)
            first = await response_of(raw)
            await sending
            far.early = None
            far.reads.set()
            await raw.send(head + body)
            second = await response_of(raw)
        await raw.close()
    assert (409, 200) == (first.status, second.status)
    assert body == far.seen[1].binary
    assert 2 == far.connections


SCENARIOS = [
    function
    for name, function in list(vars().items())
    if name.startswith("test_") and inspect.iscoroutinefunction(function)
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_uvloop(scenario: Any) -> None:
    """Each scenario also passes on uvloop."""
    uvloop.run(scenario())
