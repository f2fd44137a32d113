"""Tokens whose key set a server has: fetched, rotated, late, and asked for too often."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from gateway.access import key_sets
from gateway.app import Gateway
from gateway.ir.calls import ServerReadyRequest
from gateway.ir.errors import GatewayError
from gateway.transports.choice import grpc_client, http_client
from gateway.transports.contract import ClientLimits
from tests.integration.access_kit import (
    brpc_frame,
    call,
    configuration,
    control_of,
    exchange,
    read_brpc,
)
from tests.integration.asking_kit import running
from tests.integration.http_kit import eventually
from tests.properties.registered import REGISTERED, Registered

QUESTION = ServerReadyRequest()
ISSUER = "https://login.example.com/"
OIP = "/inference.GRPCInferenceService/"
ONE, TWO = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


def token(key: Any = ONE, kid: str = "one", **changes: Any) -> str:
    now = time.time()  # noqa: TID251  # tokens have calendar times
    claims = {"iss": ISSUER, "aud": "gateway", "sub": "svc", "exp": now + 60, **changes}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid})


class KeyServer:
    """Serves a key set over HTTP, and counts the requests."""

    def __init__(self) -> None:
        self.keys = {"one": ONE}
        self.fetches = 0
        self.status = 200
        self.hangs = False

    def text(self) -> bytes:
        documents = [
            {**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": kid}
            for kid, key in self.keys.items()
        ]
        return json.dumps({"keys": documents}).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.fetches += 1
        if self.hangs:
            await asyncio.Event().wait()
        body = self.text()
        writer.write(
            f"HTTP/1.1 {self.status} X\r\nLocation: /other\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        writer.close()


@asynccontextmanager
async def issuing(
    directory: Path, server: KeyServer, **issuer: Any
) -> AsyncIterator[tuple[Gateway, KeyServer]]:
    """Run a gateway whose issuer has its keys at *server*."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    entry = {
        "name": "corp",
        "issuer": ISSUER,
        "audience": "gateway",
        "jwks": f"http://127.0.0.1:{port}/keys?a=b",
        "unlisted": "accept",
        **issuer,
    }
    async with running(configuration(jwt=[entry]), directory) as gateway:
        try:
            yield gateway, server
        finally:
            listening.close()


async def fetched(gateway: Gateway) -> None:
    """Wait until the first key set is there."""

    async def is_there() -> bool:
        return await status_of(gateway, token()) != 503

    await eventually(is_there)


async def status_of(gateway: Gateway, value: str, path: str = "/v2") -> int:
    headers = {"authorization": f"Bearer {value}"}
    return (await exchange(gateway.addresses["main.http"], path, headers)).status


async def test_tokens_on_each_carrier(tmp_path: Path) -> None:
    """HTTP, gRPC and brpc accept the same token, and refuse the same wrong one."""
    async with issuing(tmp_path, KeyServer()) as (gateway, _):
        await fetched(gateway)
        for value, expected in ((token(), True), (token(TWO), False), (token(aud="x"), False)):
            assert (await status_of(gateway, value) == 200) is expected
            metadata = [("authorization", f"Bearer {value}")]
            status, _, _ = await call(
                gateway.addresses["main.grpc"], f"{OIP}ServerMetadata", metadata=metadata
            )
            assert (status.name == "OK") is expected
            host, port = gateway.addresses["main.grps.brpc"].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(brpc_frame("ServerMetadata", 1, f"Bearer {value}"))
            meta, _ = await read_brpc(reader)
            assert (meta.response.error_code == 0) is expected
            writer.close()


async def test_unknown_kids_cause_one_fetch_in_10_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls in between get 401 at once, and valid tokens stay valid."""
    monkeypatch.setattr(key_sets, "FETCH_INTERVAL_S", 0.5)
    async with issuing(tmp_path, KeyServer()) as (gateway, server):
        await fetched(gateway)
        assert server.fetches == 1
        server.keys["two"] = TWO

        async def is_known() -> bool:
            assert await status_of(gateway, token()) == 200
            return await status_of(gateway, token(TWO, "two")) != 401

        await eventually(is_known)
        assert server.fetches == 2
        monkeypatch.setattr(key_sets, "FETCH_INTERVAL_S", 600.0)
        for number in range(30):
            assert await status_of(gateway, token(kid=f"unknown{number}")) == 401
        assert server.fetches <= 3


@pytest.mark.parametrize("fault", ["hangs", "redirects"])
async def test_a_key_server_that_fails_delays_no_request(tmp_path: Path, fault: str) -> None:
    """Tokens get 503 before the first set."""
    server = KeyServer()
    server.hangs = fault == "hangs"
    server.status = 302
    async with issuing(tmp_path, server) as (gateway, _):
        await eventually(lambda: server.fetches)
        began = time.monotonic()
        assert await status_of(gateway, token()) == 503
        assert time.monotonic() - began < 30  # it hangs for a minute


async def test_a_key_set_in_a_file_is_watched(tmp_path: Path) -> None:
    """A broken file changes nothing; a key that leaves ends its tokens."""
    server, path = KeyServer(), tmp_path / "keys.json"
    path.write_bytes(server.text())
    entry = {
        "name": "corp",
        "issuer": ISSUER,
        "audience": "gateway",
        "jwks": "keys.json",
        "unlisted": "accept",
    }
    async with running(configuration(jwt=[entry]), tmp_path) as gateway:
        assert await status_of(gateway, token()) == 200
        path.write_text("{")
        await control_of(gateway).look()
        assert await status_of(gateway, token()) == 200
        server.keys = {"two": TWO}
        path.write_bytes(server.text())
        await control_of(gateway).look()
        assert await status_of(gateway, token()) == 401
        assert await status_of(gateway, token(TWO, "two")) == 200


def _asks_about_readiness(codec: Registered) -> bool:
    made = codec.make({})
    try:
        return isinstance(made.decode_call(made.encode_call(QUESTION)), ServerReadyRequest)
    except GatewayError:
        return False


READINESS = frozenset(
    name
    for name, each in REGISTERED.items()
    if each.carrier != "stream" and _asks_about_readiness(each)
)
"""The codecs whose clients can ask whether the server is ready."""


async def readiness(gateway: Gateway) -> dict[str, bool]:
    """Return whether the server is ready, by each codec that has the question."""
    found = {}
    for name in READINESS:
        codec = REGISTERED[name]
        make = http_client if codec.carrier == "http" else grpc_client
        address = gateway.addresses[f"main.{codec.carrier}"]
        client = make("native", address, ClientLimits(), tls=None)
        try:
            made = codec.make({})
            response = await client.send(made.encode_call(QUESTION), deadline=None)
            found[name] = made.decode_reply(QUESTION, response)
        finally:
            await client.close()
    return found


async def test_a_gateway_is_not_ready_before_it_has_read_a_key_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse each token. Later failures of the server cost no readiness."""
    monkeypatch.setattr(key_sets, "FETCH_INTERVAL_S", 0.01)
    server = KeyServer()
    server.status = 500
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/keys"
        issuer = {"name": "login", "issuer": ISSUER, "audience": "gateway", "jwks": url}
        text = json.loads(configuration(jwt=[{**issuer, "unlisted": "accept"}]))
        text["upstreams"] = {}
        text["listeners"][0]["authentication"] = "optional"
        text["models"] = {
            "m": {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
        }
        async with running(json.dumps(text), tmp_path) as gateway:
            found = await gateway.status()
            assert (False, "no key set of issuer login was read yet") == (
                found["ready"],
                found["reason"],
            )
            assert dict.fromkeys(READINESS, False) == await readiness(gateway)
            server.status = 200
            source = control_of(gateway)._sources._issuers[0]
            assert source.fetched is not None
            assert await source.fetched.fetch_once()
            assert await gateway.ready()
            assert dict.fromkeys(READINESS, True) == await readiness(gateway)
            server.status = 500
            source.issuer.key_set.replace(None)
            assert await gateway.ready()
