"""Sinks of payload events: servers that keep what they get, reply late, refuse or are gone."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from gateway.app import Gateway
from gateway.telemetry.aggregation import Snapshot, snapshot
from tests.integration.http_kit import eventually

TYPE = "org.kubeflow.serving.inference."
REASONS = ("rate", "outbox", "refused", "attempts", "worker_died", "shutdown")

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SinkServer:
    """An HTTP server that keeps events.

    Attributes:
        url: Where events are sent.
        events: The headers and the body of each, in lower case.
        reply: What a request gets; the event is kept before.
    """

    def __init__(self) -> None:
        self.url = ""
        self.events: list[tuple[dict[str, str], bytes]] = []
        self.reply: Reply = accepted
        self._changed = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        async with self._changed:
            self.events.append((headers, body))
            self._changed.notify_all()
        return await self.reply(request)

    async def wait_for(self, count: int) -> None:
        """Return when at least *count* events came."""
        async with asyncio.timeout(45), self._changed:
            await self._changed.wait_for(lambda: len(self.events) >= count)

    def pairs(self) -> dict[str, dict[str, Any]]:
        """Return the JSON of events by their id, and "request" or "response"."""
        found: dict[str, dict[str, Any]] = {}
        for headers, body in self.events:
            kind = headers["ce-type"].removeprefix(TYPE)
            found.setdefault(headers["ce-id"], {})[kind] = json.loads(body)
        return found


async def accepted(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=202)


@asynccontextmanager
async def sink_server(context: ssl.SSLContext | None = None) -> AsyncIterator[SinkServer]:
    """Run a sink on a free port, over TLS with a context."""
    sink = SinkServer()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/{path:.*}", sink.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    host, port = runner.addresses[0][:2]
    scheme = "http" if context is None else "https"
    sink.url = f"{scheme}://{host}:{port}/in?x=1"
    try:
        yield sink
    finally:
        await runner.cleanup()


def books_of(metrics: Snapshot) -> dict[str, Counter[str]]:
    """Return the books of each sink: sampled, delivered, in_flight and each reason."""
    found: dict[str, Counter[str]] = {}
    for _, _, _, samples, *form in metrics:
        for name, labels, value, *_ in () if form else samples:  # no rows of histograms
            if name.startswith("gateway_events_"):
                key = labels.get("reason") or name.removeprefix("gateway_events_").removesuffix(
                    "_total"
                )
                found.setdefault(labels["sink"], Counter())[key] += int(value)
    return found


def balance(books: Mapping[str, int]) -> int:
    """Return what is missing in the books of a sink; 0 if they are right."""
    dropped = sum(books[reason] for reason in REASONS)
    return books["sampled"] - books["delivered"] - dropped - books["in_flight"]


async def books_at_rest(
    gateway: Gateway, is_at_rest: Callable[[dict[str, Counter[str]]], bool]
) -> dict[str, Counter[str]]:
    """Return the first books that fulfil a condition; at every time they balance."""

    def so_far() -> dict[str, Counter[str]] | None:
        books = books_of(list(snapshot(gateway.metrics.registry)))
        assert dict.fromkeys(books, 0) == {name: balance(each) for name, each in books.items()}
        return books if is_at_rest(books) else None

    found = await eventually(so_far)
    assert found is not None
    return found
