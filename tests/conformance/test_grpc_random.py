"""Our gRPC beside grpcio's own client and server: many calls of every kind at once, drawn by seed.

Each call has its number in message and metadata, so that a response to another call is noticed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import grpc
import pytest
from grpc import aio

from gateway.ir.errors import DeadlineExceeded, NotSent
from gateway.transports.contract import ClientLimits, GrpcClient, ServerLimits
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.integration.grpc_echo import BIDI, MAKES, STREAM, UNARY, Answers, calling, serving
from tests.integration.http_kit import retried

CALLS = 120
SEEDS = pytest.mark.parametrize("seed", [1, 2, 3, 4])
SIZES = (0, 1, 100, 5000, 16_379, 65_530, 65_536, 200_000)
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
NEVER = b"never"
"""A message that gets no response."""


def message_of(rng: random.Random, number: int) -> bytes:
    """Return a message of a size that some limit or window makes interesting."""
    return b"%d:" % number + rng.randbytes(16) * (rng.choice(SIZES) // 16)


def failing(message: bytes) -> GrpcStatus | None:
    """Return the status that a message is to fail with."""
    number = int(message.partition(b":")[0])
    return GrpcStatus(1 + number % 16) if number % 7 == 3 else None


def details_of(message: bytes) -> str:
    """Return the details of a failure, which percent-encoding must preserve."""
    return f"nö {message.partition(b':')[0].decode()} % 100%25\n✓"


async def echo_or_fail(wire: GrpcRequest) -> Any:
    """Echo the message as our frontend, three times for a streaming method, or fail."""
    message = wire.view.tobytes()
    if message == NEVER:
        await asyncio.Event().wait()
    status = failing(message)
    metadata = tuple(pair for pair in wire.metadata if pair[0].startswith("x-"))
    if status is not None:
        yield GrpcResponse(status=status, details=details_of(message), metadata=metadata)
        return
    for _ in range(3 if wire.method == STREAM else 1):
        yield GrpcResponse((message,), metadata=metadata)


# -- grpcio calls us


class Caller:
    """A client of grpcio with every kind of call.

    Args:
        channel: It is connected.
        rng: Draws.
        queues: Calls may wait in the channel for a stream. Then none has a deadline that passes
            before it is sent: grpcio's asyncio client never ends such a call.
    """

    def __init__(self, channel: aio.Channel, rng: random.Random, *, queues: bool) -> None:
        self._kinds: list[Callable[[bytes, dict[str, Any]], Awaitable[None]]]
        self._kinds = [self._one, self._one, self._many, self._both]
        if not queues:
            self._kinds += [self._cancel, self._late]
        self._unary = channel.unary_unary(UNARY)
        self._stream = channel.unary_stream(STREAM)
        self._bidi = channel.stream_stream(BIDI)
        self._rng = rng

    async def call(self, number: int) -> None:
        """Make a call of a random kind, and check its responses."""
        rng = self._rng
        kind = rng.choice(self._kinds)
        coding = rng.choice([None, grpc.Compression.Gzip, grpc.Compression.Deflate])
        metadata = (("x-number", str(number)), ("x-raw-bin", rng.randbytes(rng.randrange(40))))
        await kind(message_of(rng, number), {"metadata": metadata, "compression": coding})

    async def _one(self, message: bytes, options: dict[str, Any]) -> None:
        call = self._unary(message, timeout=20, **options)
        status = failing(message)
        with suppress(aio.AioRpcError):
            assert message == await call
        code, details = (0, "") if status is None else (status.value, details_of(message))
        assert (code, details) == ((await call.code()).value[0], await call.details())
        assert set(options["metadata"]) <= set(await call.trailing_metadata())

    async def _many(self, message: bytes, options: dict[str, Any]) -> None:
        found = await _all(self._stream(message, timeout=20, **options))
        assert ([] if failing(message) else [message] * 3) == found

    async def _both(self, message: bytes, options: dict[str, Any]) -> None:
        sent = [b"%b.%d" % (message, n) for n in range(self._rng.randrange(5))]

        async def requests() -> AsyncIterator[bytes]:
            for each in sent:
                yield each
                await asyncio.sleep(0)

        found = await _all(self._bidi(requests(), timeout=20, **options))
        assert ([] if failing(message) else sent) == found

    async def _cancel(self, _message: bytes, options: dict[str, Any]) -> None:
        call = self._unary(NEVER, **options)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async def _late(self, _message: bytes, options: dict[str, Any]) -> None:
        with pytest.raises(aio.AioRpcError) as caught:
            await self._unary(NEVER, timeout=0.5, **options)
        assert grpc.StatusCode.DEADLINE_EXCEEDED is caught.value.code()


async def _all(call: Any) -> list[bytes]:
    """Return the responses of a stream, even if it failed."""
    found: list[bytes] = []
    with suppress(aio.AioRpcError):
        async for each in call:
            found += (each,)
    return found


@SEEDS
async def test_grpcio_calls_our_server(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of grpcio's client gets its own responses, status or cancellation."""
    monkeypatch.setattr(MAKES, "server", "native")
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    streams = CALLS if seed % 2 else 5
    limits = ServerLimits(requests_in_flight=CALLS, h2_streams=streams)
    async with (
        serving(Answers(echo_or_fail), limits) as server,
        aio.insecure_channel(server.address, options=_OPTIONS) as channel,
    ):
        await channel.channel_ready()
        caller = Caller(channel, rng, queues=streams < CALLS)
        await asyncio.gather(*(caller.call(number) for number in range(CALLS)))


# -- we call grpcio


async def _served_one(message: bytes, context: aio.ServicerContext[Any, Any]) -> bytes:
    await _respond(message, context)
    return message


async def _served_many(
    message: bytes, context: aio.ServicerContext[Any, Any]
) -> AsyncIterator[bytes]:
    await _respond(message, context)
    for _ in range(3):
        yield message


async def _respond(message: bytes, context: aio.ServicerContext[Any, Any]) -> None:
    """Do for grpcio's server what `echo_or_fail` does for ours."""
    if message == NEVER:
        await asyncio.Event().wait()
    metadata = context.invocation_metadata() or ()
    trailers = tuple((key, value) for key, value in metadata if key.startswith("x-"))
    context.set_trailing_metadata(trailers)
    context.set_compression(
        grpc.Compression.Gzip if len(message) % 2 else grpc.Compression.NoCompression
    )
    status = failing(message)
    if status is not None:
        code = next(code for code in grpc.StatusCode if code.value[0] == status.value)
        await context.abort(code, details_of(message), trailers)


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Raw methods of grpcio's server."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the implementation of a method."""
        if details.method == UNARY:
            return grpc.unary_unary_rpc_method_handler(_served_one)
        return grpc.unary_stream_rpc_method_handler(_served_many)


@SEEDS
async def test_our_client_calls_grpcio(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call to grpcio's server gets its own responses, status or cancellation."""
    monkeypatch.setattr(MAKES, "client", "native")
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    server = aio.server(options=(*_OPTIONS, ("grpc.max_concurrent_streams", rng.choice([7, 100]))))
    server.add_generic_rpc_handlers((Service(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        limits = ClientLimits(connections=3, in_flight=CALLS)
        async with calling(f"127.0.0.1:{port}", limits) as client:
            await asyncio.gather(*(_call(client, rng, number) for number in range(CALLS)))
    finally:
        await server.stop(None)


async def _call(client: GrpcClient, rng: random.Random, number: int) -> None:
    """Make a call of our client, of a random kind, and check its responses."""
    kind = rng.choice(["one", "one", "many", "left", "late"])
    message = NEVER if kind in ("left", "late") else message_of(rng, number)
    metadata = (("x-number", str(number)), ("x-raw-bin", rng.randbytes(9)))
    wire = GrpcRequest(STREAM if kind == "many" else UNARY, (message,), metadata)
    if kind == "left":
        task = asyncio.create_task(client.send(wire, deadline=None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif kind == "late":
        with pytest.raises((DeadlineExceeded, NotSent)):
            await client.send(wire, deadline=monotonic() + 0.05)
    else:
        found = await _responses(client, wire)
        status = failing(message)
        if status is not None:
            assert [(status, details_of(message))] == [
                (each.status, each.details) for each in found
            ]
        else:
            assert [message] * (3 if kind == "many" else 1) == [bytes(each.view) for each in found]
        if kind == "one":
            assert set(metadata) <= set(found[0].metadata)


async def _responses(client: GrpcClient, wire: GrpcRequest) -> list[GrpcResponse]:
    """Send *wire* until it is accepted: grpcio's core refuses streams while it cleans up."""
    deadline = monotonic() + 30

    async def respond() -> list[GrpcResponse]:
        if wire.method == UNARY:
            return [await client.send(wire, deadline=deadline)]
        return [each async for each in client.stream(wire, deadline=deadline)]

    return await retried(respond, NotSent)
