"""Some 50 wrong credentials on nine carriers, each in the form of its protocol, and too many new tokens."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from gateway.access import control as access
from gateway.access.key_file import KeyFile, save_key_file
from gateway.access.tokens import JwtReader
from gateway.app import Gateway
from tests.cases.tokens import EC, ISSUER, KEYS, OTHER_RSA, WRONG, token
from tests.cases.tokens import NOW as TIME_OF_TOKENS
from tests.integration.access_kit import (
    KEY,
    NOW,
    OTHER_KEY,
    brpc_frame,
    configuration,
    exchange,
    read_brpc,
)
from tests.integration.asking_kit import running

REVOKED, EXPIRED, DISABLED = (f"tg_{name}{'x' * 40}" for name in ("revoked", "ended", "disabled"))
JWT = {"name": "corp", "issuer": ISSUER, "audience": "gateway", "jwks": "keyset.json"}
HTTP = {
    "oip.http": "/v2/models/m",
    "trtis.http": "/api/status/m",
    "graphpipe.http": "/graphpipe/m",
    "grps.http": "/grps/v1/metadata/server",
}
GRPC = {
    "oip.grpc": "/inference.GRPCInferenceService/ServerMetadata",
    "trtis.grpc": "/nvidia.inferenceserver.GRPCService/Status",
    "grps.grpc": "/grps.protos.v1.GrpsService/ServerMetadata",
}
CARRIERS = (*HTTP, *GRPC, "grps.brpc", "brpc.http")

WRONG_KEYS: Mapping[str, Mapping[str, str]] = {
    "empty": {"x-api-key": ""},
    "cut": {"x-api-key": KEY[:-1]},
    "longer": {"x-api-key": KEY + "x"},
    "other case": {"x-api-key": KEY.swapcase()},
    "unknown": {"x-api-key": OTHER_KEY},
    "revoked": {"x-api-key": REVOKED},
    "expired": {"x-api-key": EXPIRED},
    "disabled": {"x-api-key": DISABLED},
    "hash": {"x-api-key": "0" * 64},
    "bearer": {"authorization": f"Bearer {OTHER_KEY}"},
    "no bearer": {"authorization": "Bearer"},
    "no password": {"authorization": "Basic " + b64encode(f"{KEY}:".encode()).decode()},
    "no base64": {"authorization": "Basic !!!"},
    "one of two": {"x-api-key": KEY, "authorization": f"Bearer {OTHER_KEY}"},
}


class Client:
    """Sends credentials to each carrier of a gateway, and returns the refusal: status and text."""

    def __init__(self, gateway: Gateway, stack: AsyncExitStack) -> None:
        self._addresses = gateway.addresses
        self._stack = stack
        self._channel: Any = None

    async def ask(self, carrier: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """Return the status in HTTP's terms, and the text; check the form of a refusal."""
        if carrier in HTTP:
            return await self._http(carrier, headers)
        if carrier == "brpc.http":
            return await self._brpc_http(headers)
        return await (self._brpc if carrier == "grps.brpc" else self._grpc)(carrier, headers)

    async def _http(self, carrier: str, headers: Mapping[str, str]) -> tuple[int, str]:
        method = "POST" if carrier == "graphpipe.http" else "GET"
        reply = await exchange(self._addresses["main.http"], HTTP[carrier], headers, method=method)
        if reply.status not in REFUSALS:
            return reply.status, ""
        check_challenge(reply)
        if carrier == "oip.http":
            return reply.status, json.loads(reply.body)["error"]
        if carrier == "grps.http":
            status = json.loads(reply.body)["status"]
            assert (reply.status, "FAILURE") == (status["code"], status["status"])
            return reply.status, status["msg"]
        if carrier == "trtis.http":
            assert b"" == reply.body
            assert "code: UNAVAILABLE" in reply.headers["nv-status"]
            text = reply.headers["nv-status"].partition('msg: "')[2].partition('" server_id')[0]
            return reply.status, text.replace("\\'", "'")
        return reply.status, reply.body.decode().strip()

    async def _brpc_http(self, headers: Mapping[str, str]) -> tuple[int, str]:
        reply = await exchange(
            self._addresses["main.grps.brpc"],
            "/GrpsBrpcService/ServerMetadata",
            headers,
            method="POST",
            body=b"{}",
        )
        if reply.status in REFUSALS:
            check_challenge(reply)
            assert {401: "1004", 429: "2004"}[reply.status] == reply.headers["x-bd-error-code"]
        return reply.status, reply.body.decode().rpartition("]")[2].strip()

    async def _grpc(self, carrier: str, headers: Mapping[str, str]) -> tuple[int, str]:
        if self._channel is None:
            channel = aio.insecure_channel(self._addresses["main.grpc"])
            self._channel = await self._stack.enter_async_context(channel)
        try:
            unary = self._channel.unary_unary(GRPC[carrier])
            await unary(b"", metadata=tuple(headers.items()), timeout=60)
        except aio.AioRpcError as error:
            return STATUSES.get(error.code().name, 200), error.details() or ""
        return 200, ""

    async def _brpc(self, _carrier: str, headers: Mapping[str, str]) -> tuple[int, str]:
        host, port = self._addresses["main.grps.brpc"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with closing(writer):
            [data] = headers.values()
            writer.write(brpc_frame("ServerMetadata", 1, data))
            meta, _ = await read_brpc(reader)
            code, text = meta.response.error_code, meta.response.error_text
            if code == 1004:
                assert b"" == await asyncio.wait_for(reader.read(), 20)
        return {0: 200, 1004: 401, 2004: 429}[code], text.rpartition("]")[2]


REFUSALS = (401, 429)
STATUSES = {"UNAUTHENTICATED": 401, "RESOURCE_EXHAUSTED": 429}


def check_challenge(reply: Any) -> None:
    """Check what tells a client of HTTP what to do."""
    if reply.status == 429:
        assert "1" == reply.headers["retry-after"]
    else:
        challenge = 'Bearer realm="tensor-gateway", error="invalid_token"'
        assert challenge == reply.headers["www-authenticate"]


@asynccontextmanager
async def client(
    directory: Path, transport: str = "native", **security: Any
) -> AsyncIterator[Client]:
    """Run a gateway with keys and an issuer, and yield what asks it."""
    (directory / "keyset.json").write_text(json.dumps({"keys": KEYS}))
    file = KeyFile.new().added("fraud", KEY, NOW).added("fraud", EXPIRED, NOW, expires=NOW)
    file = file.added("fraud", REVOKED, NOW, key_id="r").revoked("r", NOW)
    save_key_file(directory / "keys.yaml", file.added("gone", DISABLED, NOW))
    text = configuration(transport, keys={"file": "keys.yaml"}, jwt=[JWT], **security)
    document = json.loads(text)
    document["clients"] = {
        "fraud": {"subjects": {"corp": ["svc-fraud"]}},
        "gone": {"enabled": False, "subjects": {"corp": ["svc-gone"]}},
    }
    del document["upstreams"]
    example = "gateway.backends.examples:identity_fp32"
    document["models"] = {"m": {"backend": "python", "options": {"callable": example}}}
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running(json.dumps(document), directory))
        yield Client(gateway, stack)


@pytest.fixture(autouse=True)
def _time_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be the time of the tokens of the tables."""
    reader = partial(JwtReader, now=lambda: TIME_OF_TOKENS)
    monkeypatch.setattr(access, "JwtReader", reader)


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_wrong_credentials_on_each_carrier(tmp_path: Path, transport: str) -> None:
    """Each is 401 in the form of its protocol, and all carriers say the same, without a value."""
    wrong = {f"key {name}": headers for name, headers in WRONG_KEYS.items()}
    for name, (make, _) in WRONG.items():
        value = make()
        if value.isascii():
            wrong[f"token {name}"] = {"authorization": f"Bearer {value}"}
    assert len(wrong) > 45
    async with client(tmp_path, transport, token_checks="100000/s") as clients:
        for name, headers in wrong.items():
            texts: dict[str, str] = {}
            for carrier in CARRIERS:
                if carrier == "grps.brpc" and not is_frame_data(headers):
                    continue
                status, text = await clients.ask(carrier, headers)
                assert (name, carrier, 401) == (name, carrier, status)
                texts[carrier] = text
            assert (name, 1) == (name, len({*texts.values()})), texts
            text = texts["oip.http"]
            assert not [value for value in headers.values() if len(value) > 9 and value in text]
        for carrier in CARRIERS:
            for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {token()}"}):
                assert (await clients.ask(carrier, headers))[0] != 401


def is_frame_data(headers: Mapping[str, str]) -> bool:
    """Return whether a frame of brpc can have the same: one credential that is not `Basic`."""
    [value, *more] = headers.values()
    return bool(value) and not more and not value.startswith("Basic")


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_too_many_new_tokens_on_each_carrier(tmp_path: Path, transport: str) -> None:
    """They are 429 in the form of its protocol; keys and verified tokens are never refused."""
    verified, key = {"authorization": f"Bearer {token()}"}, {"x-api-key": KEY}
    new = {"authorization": f"Bearer {token(EC, 'ES256', 'ec')}"}
    wrong = {"authorization": f"Bearer {token(OTHER_RSA)}"}
    async with client(tmp_path, transport, token_checks="1/min") as clients:
        assert (await clients.ask("oip.grpc", verified))[0] == 200
        for carrier in CARRIERS:
            for headers in (wrong, new):
                status, text = await clients.ask(carrier, headers)
                assert (carrier, 429) == (carrier, status)
                assert "too many new tokens from this address" in text
            for headers in (verified, key):
                assert (await clients.ask(carrier, headers))[0] not in REFUSALS
            unsigned = {"authorization": f"Bearer {WRONG['unknown_kid'][0]()}"}
            assert (await clients.ask(carrier, unsigned))[0] == 401  # form and key id are free


async def test_a_flood_of_tokens_takes_no_call_of_others(tmp_path: Path) -> None:
    """While each new token is refused, keys and verified tokens are served, call after call."""
    verified, key = {"authorization": f"Bearer {token()}"}, {"x-api-key": KEY}
    async with client(tmp_path, token_checks="1/min") as clients:
        assert (await clients.ask("oip.grpc", verified))[0] == 200

        async def flood(number: int) -> set[int]:
            headers = {"authorization": f"Bearer {token(OTHER_RSA, jti=str(number))}"}
            return {(await clients.ask("oip.grpc", headers))[0] for _ in range(20)}

        async def serve(headers: Mapping[str, str]) -> set[int]:
            return {(await clients.ask("oip.grpc", headers))[0] for _ in range(100)}

        floods = [flood(number) for number in range(20)]
        found = await asyncio.gather(*floods, serve(verified), serve(key))
    assert [{429}] * 20 + [{200}, {200}] == found
