"""Sinks that are slow, dead or hostile, and processes that die: the books stay exact."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from gateway.config.load import load_text
from tests.integration import workers_kit
from tests.integration.asking_kit import ask, running, server_config, urls
from tests.integration.event_kit import (
    REASONS,
    balance,
    books_at_rest,
    sink_server,
)
from tests.integration.shadow_kit import shadow_pid
from tests.integration.workers_kit import eventually, two_workers

pytestmark = pytest.mark.slow

SCAN = np.zeros((1, 64), np.float32)
CALLS = 20


def config(**sinks: dict[str, Any]) -> str:
    """Return a configuration that serves the model of the demo and has sinks of events."""
    found = yaml.safe_load(server_config())
    return yaml.safe_dump({**found, "events": sinks})


def sink_at(url: str, **keys: Any) -> dict[str, Any]:
    return {"url": url, "payload": "full", **keys}


def closed_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def call(gateway: Any, count: int = CALLS) -> None:
    url = urls(gateway, "digits")["oip.grpc"]
    for _ in range(count):
        await ask(url, "digits", {"X": SCAN})


async def test_a_slow_and_a_dead_sink_cost_their_own_events_only() -> None:
    """The living sink gets every pair while the slow one replies to none and nobody is the third."""
    async with sink_server() as live, sink_server() as slow:
        replies = asyncio.Event()

        async def late(_request: web.Request) -> web.StreamResponse:
            await replies.wait()
            return web.Response(status=200)

        slow.reply = late
        text = config(
            live=sink_at(live.url),
            slow=sink_at(slow.url, concurrency=2, timeout="60s"),
            dead=sink_at(f"http://127.0.0.1:{closed_port()}/", attempts=2),
        )
        async with running(text) as gateway:
            await call(gateway)
            await live.wait_for(2 * CALLS)
            books = await books_at_rest(
                gateway,
                lambda found: not found["dead"]["in_flight"] and not found["live"]["in_flight"],
            )
            assert [{"request", "response"}] * CALLS == [
                set(pair) for pair in live.pairs().values()
            ]
            assert 2 * CALLS == books["live"]["delivered"] == books["slow"]["in_flight"]
            assert 2 * CALLS == books["dead"]["attempts"]
            assert 2 == len(slow.events)
            replies.set()
            books = await books_at_rest(gateway, lambda found: not found["slow"]["in_flight"])
            assert 2 * CALLS == books["slow"]["delivered"] == len(slow.events)


async def test_a_killed_shadow_process_loses_nothing_from_the_books() -> None:
    """What it had is dropped as `worker_died`; the next process sends later events."""
    async with sink_server() as live:
        replies = asyncio.Event()

        async def late(_request: web.Request) -> web.StreamResponse:
            await replies.wait()
            return web.Response(status=200)

        live.reply = late
        async with running(config(live=sink_at(live.url, concurrency=4))) as gateway:
            await call(gateway)
            await live.wait_for(4)
            os.kill(shadow_pid(gateway), signal.SIGKILL)
            replies.set()
            books = await books_at_rest(gateway, lambda found: not found["live"]["in_flight"])
            first = books["live"]
            assert first["worker_died"] >= 4
            assert 2 * CALLS == first["worker_died"] + first["delivered"]
            await call(gateway)
            books = await books_at_rest(
                gateway, lambda found: found["live"]["delivered"] == first["delivered"] + 2 * CALLS
            )
            assert (4 * CALLS, 0) == (books["live"]["sampled"], books["live"]["in_flight"])


def books_of_page(text: str) -> dict[str, Counter[str]]:
    """Return the books of each sink on a page of metrics."""
    found: dict[str, Counter[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("gateway_events_") and "sink" in sample.labels:
                name = sample.name.removeprefix("gateway_events_").removesuffix("_total")
                key = sample.labels.get("reason") or name
                found.setdefault(sample.labels["sink"], Counter())[key] += int(sample.value)
    return found


def test_a_killed_worker_loses_nothing_from_the_books(tmp_path: Path) -> None:
    """What a worker had in flight is dropped as `worker_died`, and the sum of all workers is exact."""
    dead = f"http://127.0.0.1:{closed_port()}/"
    more = yaml.safe_dump({"events": {"dead": sink_at(dead, attempts=100)}})
    with two_workers(tmp_path, more=more) as gateway:
        for _ in range(CALLS):
            with closing(workers_kit.connect(gateway)) as connection:
                assert workers_kit.ask(connection) == 200

        def sampled() -> bool:
            books = books_of_page(workers_kit.metrics(gateway)).get("dead", Counter())
            return books["in_flight"] == 2 * CALLS == books["sampled"]

        eventually(sampled)
        os.kill(workers_kit.pids(gateway)[1], signal.SIGKILL)

        def counted() -> bool:
            books = books_of_page(workers_kit.metrics(gateway)).get("dead", Counter())
            return books["sampled"] == 2 * CALLS and bool(books["worker_died"])

        eventually(counted)
        books = books_of_page(workers_kit.metrics(gateway))["dead"]
        assert (0, set(REASONS) & {"worker_died"}) == (
            balance(books),
            {reason for reason in REASONS if books[reason]},
        )


@asynccontextmanager
async def raw_server(reply: bytes) -> AsyncIterator[str]:
    """Run a server that sends bytes after the head of each request, and closes; yield its URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}/"


HOSTILE = {
    "silence": b"",
    "no_http": b"\x00\xff" * 500,
    "endless_status": b"HTTP/1.1 " + b"2" * 100_000,
    "endless_header": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 1_000_000,
    "large_body": b"HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n" + b"a" * 100_000,
    "short_body": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
    "two_lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "bad_chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "redirect": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "only_informational": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
}


async def test_a_hostile_reply_is_a_failed_attempt() -> None:
    """Whatever sinks send, their events are dropped after their attempts, and others get theirs."""
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(sink_server())
        sinks = {"live": sink_at(live.url)}
        for name, reply in HOSTILE.items():
            url = await stack.enter_async_context(raw_server(reply))
            sinks[name] = sink_at(url, attempts=1, timeout="5s")
        gateway = await stack.enter_async_context(running(config(**sinks)))
        await call(gateway, 2)
        await live.wait_for(4)
        books = await books_at_rest(
            gateway, lambda found: not any(each["in_flight"] for each in found.values())
        )
        assert {"sampled": 4, "delivered": 4} == +books.pop("live")
        assert {name: {"sampled": 4, "attempts": 4} for name in HOSTILE} == {
            name: +each for name, each in books.items()
        }


STATUSES = {
    200: "delivered",
    204: "delivered",
    299: "delivered",
    304: "attempts",
    400: "refused",
    404: "refused",
    408: "attempts",
    429: "attempts",
    500: "attempts",
    503: "attempts",
}


async def test_a_status_decides_about_an_event() -> None:
    """2xx takes an event, 4xx refuses it but for 408 and 429, and all else is tried again."""

    async def reply(request: web.Request) -> web.StreamResponse:
        return web.Response(status=int(request.path.rpartition("/")[2]))

    async with sink_server() as sink:
        sink.reply = reply
        url = sink.url.partition("?")[0]
        sinks = {f"{status}": sink_at(f"{url}/{status}", attempts=2) for status in STATUSES}
        async with running(config(**sinks)) as gateway:
            await call(gateway, 1)
            books = await books_at_rest(
                gateway, lambda found: not any(each["in_flight"] for each in found.values())
            )
            assert {
                f"{status}": {"sampled": 2, reason: 2} for status, reason in STATUSES.items()
            } == {status: +each for status, each in books.items()}
            tries = [1 + (reason == "attempts") for reason in STATUSES.values()]
            assert 2 * sum(tries) == len(sink.events)


async def test_a_failed_event_is_delivered_later() -> None:
    """A sink that failed once gets the event again with the same id."""
    async with sink_server() as sink:
        statuses = iter([500, 503])

        async def reply(_request: web.Request) -> web.StreamResponse:
            return web.Response(status=next(statuses, 200))

        sink.reply = reply
        async with running(config(one=sink_at(sink.url))) as gateway:
            await call(gateway, 1)
            books = await books_at_rest(gateway, lambda found: found["one"]["delivered"] == 2)
            assert {"sampled": 2, "delivered": 2} == +books["one"]
            kept = Counter((head["ce-id"], head["ce-type"]) for head, _ in sink.events)
            assert [2, 2] == list(kept.values())


async def test_a_reload_changes_sinks_without_loss() -> None:
    """Events of a sink that goes are still sent, and those of one that comes follow at once."""
    async with sink_server() as old, sink_server() as new:
        replies = asyncio.Event()

        async def late(_request: web.Request) -> web.StreamResponse:
            await replies.wait()
            return web.Response(status=200)

        old.reply = late
        before = config(one=sink_at(old.url), other=sink_at(old.url))
        async with running(before) as gateway:
            await call(gateway)
            await old.wait_for(8)
            await gateway.reload(load_text(config(one=sink_at(new.url), third=sink_at(new.url))))
            await call(gateway)
            await new.wait_for(4 * CALLS)
            replies.set()
            books = await books_at_rest(
                gateway, lambda found: not any(each["in_flight"] for each in found.values())
            )
            assert {
                "one": {"sampled": 4 * CALLS, "delivered": 4 * CALLS},
                "other": {"sampled": 2 * CALLS, "delivered": 2 * CALLS},
                "third": {"sampled": 2 * CALLS, "delivered": 2 * CALLS},
            } == {name: +each for name, each in books.items()}
            assert (4 * CALLS, 4 * CALLS) == (len(old.events), len(new.events))
