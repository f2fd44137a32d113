"""A program outside of the gateway decides: a callable, and a server of Envoy's `Check`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from aiohttp import ClientSession
from grpc import aio

from gateway.app.external_access import check_request, read_verdict
from gateway.ir.identity import Identity
from gateway.policies.access.external import ExternalFacts
from gateway.wire.protobuf import LEN, fields, tag
from tests.integration.asking_kit import running
from tests.integration.test_permissions import sent
from tests.integration.test_quotas import CONFIG, DOCUMENT

SEEN: list[tuple[str, ExternalFacts]] = []


def decide(client: Identity, facts: ExternalFacts) -> bool | str:
    """Allow all but metadata, and tell why."""
    SEEN.append((client.name, facts))
    return True if facts.operation == "inference" else "ask someone else"


async def decide_late(_client: Identity, _facts: ExternalFacts) -> bool:
    """Take longer than anybody waits."""
    await asyncio.sleep(60)
    return True


def config(external: str) -> str:
    """Return a configuration with a program that decides."""
    return CONFIG.replace("quotas: QUOTAS", f"security: {{external: {external}}}")


async def statuses(text: str) -> tuple[list[int], bytes]:
    """Return the statuses of two inferences and of a question for metadata, and its body."""
    async with running(text) as gateway, ClientSession() as client:
        url = f"http://{gateway.addresses['main.http']}/v2/models/simple"
        found = [(await sent(client, "POST", f"{url}/infer", DOCUMENT))[0] for _ in range(2)]
        status, _, body = await sent(client, "GET", url)
        return [*found, status], body


async def test_a_callable_decides_once_for_equal_facts() -> None:
    """The text of a denial reaches the client, and an allowed call is decided once."""
    SEEN.clear()
    found, body = await statuses(
        config('{python: "tests.integration.test_external_decision:decide", timeout: 5s}')
    )
    assert found == [200, 200, 403]
    assert b"ask someone else" in body
    [(name, facts), _] = SEEN
    assert name == "anonymous"
    assert (facts.operation, facts.model, facts.elements) == ("inference", "simple", 32)
    assert facts.path == "/v2/models/simple/infer"
    assert facts.inputs == "INPUT0:INT32:1x16;INPUT1:INT32:1x16"


async def test_a_late_callable_denies_or_allows() -> None:
    """`on_failure` holds after the timeout."""
    late = 'python: "tests.integration.test_external_decision:decide_late", timeout: 10ms'
    started = time.monotonic()
    assert (await statuses(config(f"{{{late}}}")))[0] == [403, 403, 403]
    assert (await statuses(config(f"{{{late}, on_failure: allow}}")))[0] == [200, 200, 200]
    assert time.monotonic() - started < 30


class Authorization(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio is untyped
    """A server of Envoy's external authorization that replies with fixed bytes."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.requests: list[bytes] = []

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        assert details.method == "/envoy.service.auth.v3.Authorization/Check"

        async def answer(request: bytes, _context: Any) -> bytes:
            self.requests.append(request)
            return self.reply

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def authorizing(reply: bytes) -> AsyncIterator[tuple[Authorization, int]]:
    """Serve *reply*."""
    server, handler = aio.server(), Authorization(reply)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield handler, port
    finally:
        await server.stop(None)


def values(message: bytes, path: Sequence[int]) -> list[bytes]:
    """Return the nested fields at a path of numbers."""
    found = [message]
    for number in path:
        found = [
            bytes(value)
            for each in found
            for key, value in fields(memoryview(each), 100)
            if key == tag(number, LEN)
        ]
    return found


DENIED = (
    bytes([0x0A, 0x02, 0x08, 0x07, 0x12, 0x09, 0x0A, 0x03, 0x08, 0x93, 0x03, 0x1A, 0x02]) + b"no"
)
LIMITED = bytes([0x0A, 0x02, 0x08, 0x07, 0x12, 0x05, 0x0A, 0x03, 0x08, 0xAD, 0x03])


async def test_a_server_of_check_decides() -> None:
    """Code 0 allows; another one is 403 with its body, and 429 stays 429."""
    for reply, expected in ((b"", [200, 200, 200]), (DENIED, [403] * 3), (LIMITED, [429] * 3)):
        async with authorizing(reply) as (handler, port):
            found, body = await statuses(config(f'{{grpc: "127.0.0.1:{port}", timeout: 5s}}'))
        assert found == expected
        assert (b'"no"' in body) is (reply is DENIED)
        assert len(handler.requests) == 2
        assert values(handler.requests[0], (1, 1, 4)) == [b"anonymous"]
        assert values(handler.requests[0], (1, 4, 2, 4)) == [b"/v2/models/simple/infer"]
        assert values(handler.requests[0], (1, 4, 2, 11)) == []
        names = values(handler.requests[0], (1, 10, 1))
        assert {b"client", b"model", b"operation", b"inputs"} <= set(names)


async def test_a_server_that_is_away_denies() -> None:
    """Without a decision calls are denied."""
    found, _ = await statuses(config('{grpc: "127.0.0.1:9", timeout: 200ms}'))
    assert found == [403, 403, 403]


def test_check_requests_have_no_empty_fields() -> None:
    """An anonymous call without a model has only what is known."""
    message = check_request(Identity("a"), ExternalFacts(operation="switch"))
    assert values(message, (1, 1, 4)) == [b"a"]
    assert read_verdict(memoryview(b"")).is_allowed
