"""A connection that breaks after the server has run a call: no carrier repeats the call by itself.

A proxy before each server cuts the connection instead of passing on the reply.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.ir.calls import StreamInferRequest
from gateway.ir.errors import Unavailable
from gateway.transports.net.sockets import reset_when_closed
from tests.integration.asking_kit import running
from tests.integration.reload_kit import CALLS, SERVER, STEP, infer_request

pytestmark = pytest.mark.timeout(60)

LISTENERS = {"oip+http": "main.http", "oip+grpc": "main.grpc", "grps+brpc": "main.grps.brpc"}
CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: null, metrics: null}}
lifecycle: {{pre_stop: 0s}}
upstreams:
  pair:
    urls: ["{scheme}://{first}", "{scheme}://{second}"]
    transport: {transport}
    probe: {{interval: 60s}}
routes: [{{name: all, retry: {{{retry}}}, targets: [{{upstream: pair}}]}}]
"""
RETRY = "on: [unsent, reset_before_answer], idempotent: true, min_retries: 20"


class CuttingProxy:
    """Passes on bytes, except replies to calls that a model ran while it cuts.

    Args:
        number: The number of the server.
        server: Its address.

    Attributes:
        cut: "reset" or "close"; "" to pass on everything.
    """

    def __init__(self, number: int, server: str) -> None:
        self._number = number
        self._host, _, port = server.rpartition(":")
        self._port = int(port)
        self.cut = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Listen; yield the address."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield "127.0.0.1:{1}".format(*server.sockets[0].getsockname())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        sending = asyncio.create_task(self._pass_on(reader, up_writer))
        try:
            ran = self._executions()
            while data := await up_reader.read(1 << 16):
                if self.cut and self._executions() > ran:
                    if self.cut == "reset":
                        reset_when_closed(writer.transport.get_extra_info("socket"))
                    break
                ran = self._executions()
                writer.write(data)
        except OSError:
            pass  # the gateway has closed the connection
        finally:
            sending.cancel()
            up_writer.close()
            writer.close()

    def _executions(self) -> int:
        return sum(number == self._number for number, _ in CALLS)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def gateway_before_proxies(
    scheme: str, transport: str, retry: str
) -> AsyncIterator[tuple[Gateway, list[CuttingProxy]]]:
    """Run a gateway, and two servers with a proxy before each."""
    async with AsyncExitStack() as stack:
        proxies, found = [], []
        for number in (1, 2):
            text = SERVER.format(number=number).replace(
                'grpc: "127.0.0.1:0"',
                'grpc: "127.0.0.1:0", streams: [{protocol: grps, address: "127.0.0.1:0"}]',
            )
            server = await stack.enter_async_context(running(text))
            proxies.append(CuttingProxy(number, server.addresses[LISTENERS[scheme]]))
            found.append(await stack.enter_async_context(proxies[-1].serving()))
        first, second = found
        config = CONFIG.format(
            scheme=scheme, transport=transport, retry=retry, first=first, second=second
        )
        yield await stack.enter_async_context(running(config)), proxies


async def call(gateway: Gateway, value: int, *, is_stream: bool) -> None:
    """Send one call, and read its replies."""
    service: Any = gateway.service
    request = infer_request("add", value)
    if is_stream:
        replies = await service(StreamInferRequest(model=request.model, request=request))
        assert any([each.outputs async for each in replies])
    else:
        await service(request)


async def is_served(gateway: Gateway, value: int, *, is_stream: bool) -> bool:
    """Send one call; return whether its connection held."""
    try:
        await call(gateway, value, is_stream=is_stream)
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("cut", ["reset", "close"])
@pytest.mark.parametrize(("retry", "executions"), [("", 1), (RETRY, 2)], ids=["default", "retry"])
@pytest.mark.parametrize(
    ("scheme", "transport", "is_stream"),
    [
        ("oip+http", "native", False),
        ("oip+http", "reference", False),
        ("oip+grpc", "native", False),
        ("oip+grpc", "reference", False),
        ("oip+grpc", "native", True),
        ("oip+grpc", "reference", True),
        ("grps+brpc", "native", False),
    ],
)
async def test_lost_reply_is_retried_only_if_idempotent(
    scheme: str, transport: str, *, is_stream: bool, retry: str, executions: int, cut: str
) -> None:
    """The caller gets an error; an idempotent call runs at both servers."""
    values = itertools.count(STEP, STEP)
    async with gateway_before_proxies(scheme, transport, retry) as (gateway, proxies):
        for _ in range(8):  # both servers are connected and known
            await call(gateway, next(values), is_stream=is_stream)
        before = len(CALLS)
        for proxy in proxies:
            proxy.cut = cut
        ran: Counter[int] = Counter()
        async with asyncio.timeout(45):
            for sent in itertools.count(1):
                with pytest.raises(Unavailable):
                    await call(gateway, next(values), is_stream=is_stream)
                ran = Counter(value for _, value in CALLS[before:])
                assert len(ran) == sent or transport == "reference"  # grpcio, as below
                if len(ran) == 4:
                    break
        assert {executions} == set(ran.values())
        for proxy in proxies:
            proxy.cut = ""
        async with asyncio.timeout(45):
            while not await is_served(gateway, next(values), is_stream=is_stream):
                pass  # grpcio may begin a call on the connection that was just cut
