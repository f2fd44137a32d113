"""A program outside of the gateway decides: a callable, and a server of Envoy's `Check`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import trustme
from aiohttp import ClientSession
from grpc import aio

from gateway.access.envoy_check import check_request, verdict_of
from gateway.ir.calls import InferRequest
from gateway.ir.identity import Identity
from gateway.ir.tensors.tensor import array_tensor
from gateway.policies.access.external import ExternalFacts, inputs_text
from gateway.schema import external_auth_pb2 as pb
from tests.integration.asking_kit import running
from tests.integration.test_permissions import sent
from tests.integration.test_quotas import CONFIG, DOCUMENT
from tests.integration.tls_kit import write_authorities

SEEN: list[tuple[str, ExternalFacts]] = []


def decide(client: Identity, facts: ExternalFacts) -> bool | str:
    """Allow all but metadata, and tell why."""
    SEEN.append((client.name, facts))
    return True if facts.operation == "inference" else "ask someone else"


async def decide_late(_client: Identity, _facts: ExternalFacts) -> bool:
    """Take longer than anybody waits."""
    await asyncio.Event().wait()
    return True


def config(external: str) -> str:
    """Return a configuration with a program that decides."""
    return CONFIG.replace("quotas: QUOTAS", f"security: {{external: {external}}}")


async def statuses(text: str, directory: Path = Path()) -> tuple[list[int], bytes]:
    """Return the statuses of two inferences and of a question for metadata, and its body."""
    async with running(text, directory) as gateway, ClientSession() as client:
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
async def authorizing(reply: bytes, tls: Any = None) -> AsyncIterator[tuple[Authorization, int]]:
    """Serve *reply*."""
    server, handler = aio.server(), Authorization(reply)
    server.add_generic_rpc_handlers((handler,))
    address = "127.0.0.1:0"
    port = (
        server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
    )
    await server.start()
    try:
        yield handler, port
    finally:
        await server.stop(None)


def denial(status: int, body: str = "") -> bytes:
    """Return a reply that denies."""
    reply = pb.CheckResponse(status=pb.Status(code=7))
    reply.denied_response.status.code, reply.denied_response.body = status, body
    return reply.SerializeToString()


async def test_a_server_of_check_decides() -> None:
    """Code 0 allows; another one is 403 with its body, and 429 stays 429."""
    for reply, expected in (
        (b"", [200, 200, 200]),
        (denial(403, "no"), [403] * 3),
        (denial(500), [403] * 3),
        (denial(429), [429] * 3),
    ):
        async with authorizing(reply) as (handler, port):
            found, body = await statuses(config(f'{{grpc: "127.0.0.1:{port}", timeout: 5s}}'))
        assert found == expected
        assert (b'"no"' in body) is (reply == denial(403, "no"))
        assert len(handler.requests) == 2
        attributes = pb.CheckRequest.FromString(handler.requests[0]).attributes
        assert attributes.source.principal == "anonymous"
        assert attributes.source.address.socket_address.address == "127.0.0.1"
        http, extensions = attributes.request.http, attributes.context_extensions
        assert (http.method, http.path) == ("POST", "/v2/models/simple/infer")
        assert (http.size, len(handler.requests[0]) < 1000) == (128, True)  # and no body
        assert extensions["inputs"] == "INPUT0:INT32:1x16;INPUT1:INT32:1x16"
        assert set(extensions) == {
            *("client", "groups", "tier", "listener", "protocol", "operation"),
            *("model", "version", "elements", "bytes", "inputs"),
        }


async def test_a_server_with_tls_decides(tmp_path: Path) -> None:
    """With a certificate of its authority alone; renewed files are used."""
    authority, other = trustme.CA(), trustme.CA()
    write_authorities(tmp_path / "ca.pem", authority)
    pair = authority.issue_cert("127.0.0.1")
    chain = b"".join(each.bytes() for each in pair.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(pair.private_key_pem.bytes(), chain)])
    async with authorizing(b"", credentials) as (handler, port):
        settings = f'{{grpc: "grpcs://127.0.0.1:{port}", timeout: 5s, tls: {{ca: ca.pem}}}}'
        assert (await statuses(config(settings), tmp_path))[0] == [200, 200, 200]
        assert len(handler.requests) == 2
        async with running(config(settings), tmp_path) as gateway:
            write_authorities(tmp_path / "ca.pem", other)
            await gateway._certificates.renew()
            assert gateway._certificates.take_replaced() == ["external"]
            async with ClientSession() as client:
                url = f"http://{gateway.addresses['main.http']}/v2/models/simple"
                assert (await sent(client, "GET", url))[0] == 403
        assert (await statuses(config(settings), tmp_path))[0] == [403, 403, 403]


async def test_a_server_that_is_away_denies() -> None:
    """Without a decision calls are denied."""
    found, _ = await statuses(config('{grpc: "127.0.0.1:9", timeout: 200ms}'))
    assert found == [403, 403, 403]


def test_check_requests_have_no_empty_fields() -> None:
    """An anonymous call without a model has only what is known."""
    request = check_request(Identity("a"), ExternalFacts(operation="switch"))
    assert request.attributes.source.principal == "a"
    assert not request.attributes.request.http.headers
    assert verdict_of(pb.CheckResponse()).is_allowed


def test_names_with_separators_were_other_names() -> None:
    """A group or an input whose name has a separator is one, and no field hides another one."""
    call = InferRequest(inputs=(array_tensor("a:FP32:1;b%", np.zeros(2, np.int8)),))
    assert "a%3AFP32%3A1%3Bb%25:INT8:2" == inputs_text(call)
    headers = (("x-user", "a"), ("x-user", "b"), ("x-a", "c"))
    facts = ExternalFacts(operation="inference", headers=headers)
    attributes = check_request(Identity("a", frozenset(["x", "b,admin"])), facts).attributes
    assert "b%2Cadmin,x" == attributes.context_extensions["groups"]
    assert {"x-user": "a,b", "x-a": "c"} == attributes.request.http.headers


async def test_a_server_that_replies_nonsense_denies() -> None:
    """What is no reply is no decision."""
    async with authorizing(b"\xff") as (_, port):
        found, _ = await statuses(config(f'{{grpc: "127.0.0.1:{port}", timeout: 5s}}'))
    assert found == [403, 403, 403]
