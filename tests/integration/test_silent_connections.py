"""A gRPC connection that a NAT has forgotten is replaced, and that of a slow server is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic

import pytest

from gateway.ir.errors import DeadlineExceeded
from gateway.transports.contract import GrpcClient
from gateway.transports.grpc import silence
from gateway.wire.grpc import GrpcStatus
from tests.integration.grpc_echo import STREAM, Answers, Slow, ask, calling, echo, serving

_SILENT_S = 0.5


@pytest.fixture(autouse=True)
def client_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with native transports, whose seconds are shorter here."""
    monkeypatch.setattr("tests.integration.grpc_echo.MAKES.client", "native")
    monkeypatch.setattr("tests.integration.grpc_echo.MAKES.server", "native")
    monkeypatch.setattr(silence, "SILENT_S", _SILENT_S)
    monkeypatch.setattr(silence, "ACKNOWLEDGED_WITHIN_S", _SILENT_S)


class Nat:
    """A proxy that can forget its connections: it keeps them open, and passes nothing on.

    Attributes:
        connections: How many were opened.
    """

    def __init__(self, target: str) -> None:
        self._target = target.rsplit(":", 1)
        self._forgotten: set[int] = set()
        self._open: list[asyncio.Task[None]] = []
        self.connections = 0

    def forget(self) -> None:
        """Forget all connections that are open now."""
        self._forgotten |= set(range(self.connections))

    def remember(self) -> None:
        """Pass on again what comes from now on."""
        self._forgotten.clear()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what both sides send."""
        number, self.connections = self.connections, self.connections + 1
        other, answer = await asyncio.open_connection(*self._target)
        passing = self._pass(number, reader, answer), self._pass(number, other, writer)
        self._open += [asyncio.create_task(each) for each in passing]

    async def close(self) -> None:
        """Close all connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _pass(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if number not in self._forgotten:
                    writer.write(data)
        except OSError:
            pass  # the other side has left
        finally:
            writer.close()


@asynccontextmanager
async def behind_nat(target: str) -> AsyncIterator[tuple[Nat, str]]:
    """Run a proxy before *target*; yield it and its address."""
    nat = Nat(target)
    server = await asyncio.start_server(nat.accept, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        try:
            yield nat, f"{host}:{port}"
        finally:
            await nat.close()


async def times_out(client: GrpcClient, within_s: float = 0.1) -> bool:
    """Call with a short deadline; return whether there was no response."""
    try:
        response = await client.send(ask(), deadline=monotonic() + within_s)
    except DeadlineExceeded:
        return True
    assert GrpcStatus.OK is response.status
    return False


async def test_a_forgotten_connection_is_replaced() -> None:
    """Calls that end at their deadline show it, and later ones get another connection."""
    async with (
        serving(Answers(echo)) as server,
        behind_nat(server.address) as (nat, address),
        calling(address) as client,
    ):
        await client.send(ask(), deadline=None)
        nat.forget()
        began = monotonic()
        assert await times_out(client)
        async with asyncio.timeout(20):
            while await times_out(client):
                pass
        assert monotonic() - began >= 2 * _SILENT_S
        assert 2 == nat.connections


async def test_cancelled_calls_show_a_forgotten_connection() -> None:
    """The clients of a gateway may have shorter deadlines than its calls."""
    async with (
        serving(Answers(echo)) as server,
        behind_nat(server.address) as (nat, address),
        calling(address) as client,
    ):
        await client.send(ask(), deadline=None)
        nat.forget()
        async with asyncio.timeout(20):
            while nat.connections < 2:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await client.send(ask(), deadline=None)
        assert not await times_out(client, 20)


async def test_a_call_without_a_deadline_shows_a_forgotten_connection() -> None:
    """It ends late or never, so the server is asked while it waits."""
    async with (
        serving(Answers(echo)) as server,
        behind_nat(server.address) as (nat, address),
        calling(address) as client,
    ):
        await client.send(ask(), deadline=None)
        nat.forget()
        waiting = asyncio.ensure_future(client.send(ask(), deadline=None))
        async with asyncio.timeout(20):
            # None of these ends, so none of them asks.
            pending = {waiting}
            while nat.connections < 2:
                pending.add(asyncio.ensure_future(client.send(ask(), deadline=None)))
                await asyncio.sleep(0.05)
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        assert not waiting.done()
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def test_calls_of_a_replaced_connection_go_on() -> None:
    """A server that acknowledges no PING may still reply."""
    slow = Slow()
    async with (
        serving(slow) as server,
        behind_nat(server.address) as (nat, address),
        calling(address) as client,
    ):
        stream = client.stream(ask(method=STREAM), deadline=None)
        assert (b"first",) == (await anext(stream)).message
        nat.forget()
        async with asyncio.timeout(20):
            while nat.connections < 2:
                await times_out(client)
        nat.remember()
        slow.go.set()
        assert (b"x",) == (await anext(stream)).message
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_a_slow_server_keeps_its_connection() -> None:
    """It acknowledges the PING, which is no sign that it will reply soon."""
    async with (
        serving(Slow()) as server,
        behind_nat(server.address) as (nat, address),
        calling(address) as client,
    ):
        until = monotonic() + 3 * _SILENT_S + 2
        while monotonic() < until:
            assert await times_out(client, 0.2)
        assert 1 == nat.connections
