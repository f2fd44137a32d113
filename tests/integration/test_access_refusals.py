"""Requests without a credential, or with a wrong one, are refused in the form of each carrier."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gateway.access.key_file import load_key_file, save_key_file
from gateway.app import Gateway
from gateway.cli.commands import command_line
from gateway.ir.calls import Call
from gateway.protocols.grps.brpc.codec import BrpcCodec
from gateway.schema import tensorrt_v1_pb2
from gateway.wire.stream import Frame
from tests.integration.access_kit import (
    KEY,
    NOW,
    OTHER_KEY,
    brpc_frame,
    call,
    configuration,
    control_of,
    exchange,
    graphpipe_frame,
    guarded,
    key_file,
    read_brpc,
)
from tests.integration.asking_kit import running, urls

BEARER = {"authorization": f"Bearer {KEY}"}
CHALLENGE = 'Bearer realm="tensor-gateway"'
MISSING = "a credential is missing: expected an API key in x-api-key or as a bearer token"
OIP = "/inference.GRPCInferenceService/"
TRTIS = "/nvidia.inferenceserver.GRPCService/"
GRPS = "/grps.protos.v1.GrpsService/"
HEALTH = "/grpc.health.v1.Health/"


@pytest.fixture(params=["native", "reference"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with guarded(tmp_path, request.param) as found:
        yield found


async def test_401_over_http(gateway: Gateway) -> None:
    """Each protocol has its own form, and all have the challenge."""
    address = gateway.addresses["main.http"]
    oip = await exchange(address, "/v2")
    assert (oip.status, json.loads(oip.body)) == (401, {"error": MISSING})
    unknown = await exchange(address, "/nothing")
    assert (unknown.status, json.loads(unknown.body)) == (401, {"error": MISSING})
    trtis = await exchange(address, "/api/status")
    assert (trtis.status, trtis.body) == (401, b"")
    assert "UNAVAILABLE" in trtis.headers["nv-status"]
    assert MISSING in trtis.headers["nv-status"]
    graphpipe = await exchange(address, "/graphpipe/m", method="POST", body=b"x")
    assert (graphpipe.status, graphpipe.body) == (401, f"{MISSING}\n".encode())
    grps = await exchange(address, "/grps/v1/metadata/server")
    assert (grps.status, json.loads(grps.body)["status"]) == (
        401,
        {"code": 401, "msg": MISSING, "status": "FAILURE"},
    )
    for reply in (oip, unknown, trtis, graphpipe, grps):
        assert reply.headers["www-authenticate"] == CHALLENGE
    wrong = await exchange(address, "/v2", {"x-api-key": OTHER_KEY})
    assert json.loads(wrong.body) == {"error": "the API key is unknown"}
    assert wrong.headers["www-authenticate"] == f'{CHALLENGE}, error="invalid_token"'


async def test_401_over_grpc(gateway: Gateway) -> None:
    """Each protocol ends the call with UNAUTHENTICATED."""
    address = gateway.addresses["main.grpc"]
    for method in (
        f"{OIP}ServerMetadata",
        f"{TRTIS}Status",
        f"{GRPS}ServerMetadata",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/no.Such/Method",
    ):
        status, details, _ = await call(address, method)
        assert (method, status.name, details) == (method, "UNAUTHENTICATED", MISSING)


async def test_401_on_a_brpc_port(gateway: Gateway) -> None:
    """Frames get error code 1004 and the end; HTTP there gets it in a header."""
    address = gateway.addresses["main.grps.brpc"]
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(brpc_frame("ServerMetadata"))
    meta, _ = await read_brpc(reader)
    assert (meta.response.error_code, meta.response.error_text) == (1004, f"[E1004]{MISSING}")
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    reply = await exchange(address, "/GrpsBrpcService/ServerMetadata", method="POST", body=b"{}")
    assert (reply.status, reply.headers["x-bd-error-code"]) == (401, "1004")
    status, _, _ = await call(address, "/grps.protos.v1.GrpsBrpcService/ServerMetadata")
    assert status.name == "UNAUTHENTICATED"


async def test_401_on_a_graphpipe_stream(gateway: Gateway) -> None:
    """The error has the number 401, and the connection stays open."""
    host, port = gateway.addresses["main.graphpipe.tcp"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(2):
        writer.write(graphpipe_frame())
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 20), "little")
        body = await reader.readexactly(size)
        assert b"a credential is missing" in body
        assert (401).to_bytes(8, "little") in body or (401).to_bytes(4, "little") in body
    writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": KEY},
        {"X-Api-Key": KEY},
        BEARER,
        {"authorization": f"bearer {KEY}"},
        {"Authorization": "Basic " + b64encode(f"any:{KEY}".encode()).decode()},
        {"x-api-key": KEY, "authorization": f"Bearer {KEY}"},
        {"x-api-key": KEY, "authorization": "Digest abc"},
    ],
)
async def test_each_place_of_a_key(tmp_path: Path, headers: dict[str, str]) -> None:
    """The header of keys, `Bearer`, and the password of `Basic`; other schemes are not read."""
    async with guarded(tmp_path) as gateway:
        reply = await exchange(gateway.addresses["main.http"], "/v2", headers)
        assert reply.status == 200
        metadata = [(name.lower(), value) for name, value in headers.items()]
        status, _, _ = await call(
            gateway.addresses["main.grpc"], f"{OIP}ServerMetadata", metadata=metadata
        )
        assert status.name == "OK"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": ""},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": KEY + "x"},
        {"x-api-key": KEY.swapcase()},
        {"authorization": "Bearer"},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic " + b64encode(f"{KEY}:".encode()).decode()},
        {"x-api-key": KEY, "authorization": f"Bearer {OTHER_KEY}"},
        {"x-api-key": OTHER_KEY, "authorization": f"Bearer {KEY}"},
        {"authorization": "Digest abc"},
    ],
)
async def test_each_credential_must_be_right(tmp_path: Path, headers: dict[str, str]) -> None:
    """A right one beside a wrong one does not help."""
    async with guarded(tmp_path) as gateway:
        reply = await exchange(gateway.addresses["main.http"], "/v2", headers)
        assert reply.status == 401
        assert KEY.encode() not in reply.body


async def test_brpc_authentication_data_holds_for_the_connection(tmp_path: Path) -> None:
    """Until a frame brings other data."""
    async with guarded(tmp_path) as gateway:
        host, port = gateway.addresses["main.grps.brpc"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for number, data, code in (
            (1, f"Bearer {KEY}", 0),
            (2, "", 0),
            (3, KEY, 0),
            (4, "", 0),
            (5, OTHER_KEY, 1004),
        ):
            writer.write(brpc_frame("ServerMetadata", number, data))
            meta, _ = await read_brpc(reader)
            assert (meta.correlation_id, meta.response.error_code) == (number, code)
        writer.close()


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_a_refusal_has_no_name_of_another_call(tmp_path: Path, transport: str) -> None:
    """After a call of a client, one without a right credential is logged without a name."""
    async with guarded(tmp_path, transport) as gateway:
        with capture_logs() as logs:
            async with aio.insecure_channel(gateway.addresses["main.grpc"]) as channel:
                method = channel.unary_unary(f"{OIP}ServerMetadata")
                await method(b"", metadata=(("x-api-key", KEY),))
                for metadata in ((), (("x-api-key", OTHER_KEY),)):
                    with pytest.raises(aio.AioRpcError):
                        await method(b"", metadata=metadata)
            host, port = gateway.addresses["main.grps.brpc"].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for number, data in ((1, KEY), (2, OTHER_KEY)):
                writer.write(brpc_frame("ServerMetadata", number, data))
                await read_brpc(reader)
            writer.close()
    refused = [each for each in logs if each["event"] == "rejected"]
    assert len(refused) == 3
    assert [] == [each for each in refused if each.get("client_name")]


async def test_the_health_of_the_server_is_public(tmp_path: Path) -> None:
    """Of a model it is not; nor is anything with a wrong path."""
    async with guarded(tmp_path) as gateway:
        http, grpc = gateway.addresses["main.http"], gateway.addresses["main.grpc"]
        for path in ("/v2/health/live", "/api/health/live", "/grps/v1/health/live"):
            assert (await exchange(http, path)).status == 200
            assert (await exchange(http, path, {"x-api-key": OTHER_KEY})).status == 200
        assert (await exchange(http, "/v2/models/m/ready")).status == 401
        assert (await exchange(http, "/v2/health/live/x")).status == 401
        for method in (f"{OIP}ServerLive", f"{GRPS}CheckLiveness", "/grpc.health.v1.Health/Check"):
            assert (await call(grpc, method))[0].name == "OK"
        status, _, _ = await call(grpc, "/grpc.health.v1.Health/Check", b"\x0a\x01m")
        assert status.name == "UNAUTHENTICATED"
        assert (await call(grpc, f"{OIP}ModelReady"))[0].name == "UNAUTHENTICATED"


@pytest.mark.parametrize("public", [True, False])
async def test_watches_and_checks_of_health_need_the_same(tmp_path: Path, public: bool) -> None:
    """`public_health` opens both for the server, and neither for a model."""
    key_file(tmp_path)
    text = configuration(keys={"file": "keys.yaml"}, public_health=public)
    async with running(text, tmp_path) as gateway:
        address = gateway.addresses["main.grpc"]
        for message, is_open in ((b"", public), (b"\x0a\x01m", False)):
            for metadata, is_named in ((), False), ((("x-api-key", KEY),), True):
                expected = "OK" if is_open or is_named else "UNAUTHENTICATED"
                status, _, _ = await call(address, f"{HEALTH}Check", message, metadata)
                assert expected == status.name
                assert expected == await watched(address, message, metadata)


async def watched(address: str, message: bytes, metadata: Any) -> str:
    """Open a watch; return "OK" when it has a first reply, or the name of its status."""
    async with aio.insecure_channel(address) as channel:
        watch = channel.unary_stream(f"{HEALTH}Watch")(message, metadata=metadata, timeout=60)
        try:
            async for _ in watch:
                return "OK"
        except aio.AioRpcError as error:
            return str(error.code().name)
    return "nothing"


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_the_metrics_page_of_a_listener_needs_a_credential(
    tmp_path: Path, transport: str
) -> None:
    """Without one it is 401 with a challenge, in the form of its errors."""
    key_file(tmp_path)
    text = configuration(transport).replace('"http": ', '"metrics": true, "http": ')
    async with running(text, tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        for headers in ({}, {"x-api-key": OTHER_KEY}):
            reply = await exchange(address, "/metrics", headers)
            assert (401, True) == (reply.status, "www-authenticate" in reply.headers)
            assert {"error"} == set(json.loads(reply.body))
        assert 200 == (await exchange(address, "/metrics", {"x-api-key": KEY})).status


async def test_changes_of_the_key_file_are_in_force(tmp_path: Path) -> None:
    """A revoked key ends, a new one works, and a broken file changes nothing."""
    async with guarded(tmp_path) as gateway:
        address, path = gateway.addresses["main.http"], tmp_path / "keys.yaml"
        reader, writer = await asyncio.open_connection(*address.split(":"))

        async def status() -> int:
            writer.write(f"GET /v2 HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
            return int(head.split()[1])

        assert await status() == 200
        path.write_text("version: 3")
        await control_of(gateway).look()
        assert await status() == 200
        (warning,) = [
            each for each in (await gateway.status())["warnings"] if each["level"] == "error"
        ]
        assert warning["file"] == "keys.yaml"
        key_file = control_of(gateway)._sources._keys
        assert key_file is not None
        save_key_file(path, key_file.content.revoked("k1", NOW).added("b", OTHER_KEY, NOW))
        await control_of(gateway).look()
        with capture_logs() as logs:
            assert await status() == 401
        (refused,) = [each for each in logs if each["event"] == "rejected"]
        assert "client_name" not in refused  # equal requests before it had one
        assert (await exchange(address, "/v2", {"x-api-key": OTHER_KEY})).status == 200
        assert len(load_key_file(path).keys) == 2
        page, _ = await gateway.page("text/plain")
        assert b'gateway_access_reloads_total{file="keys.yaml",outcome="applied"} 1.0' in page
        assert b'gateway_access_reloads_total{file="keys.yaml",outcome="failed"}' in page
        assert (
            b'gateway_authentication_failures_total{kind="key",listener="main",reason="revoked"}'
            in page
        )
        writer.close()


async def test_trtis_grpc_health_is_public(tmp_path: Path) -> None:
    """Its modes ask for the server alone."""
    async with guarded(tmp_path) as gateway:
        request = tensorrt_v1_pb2.HealthRequest(mode="live").SerializeToString()
        status, _, reply = await call(gateway.addresses["main.grpc"], f"{TRTIS}Health", request)
        assert status.name == "OK"
        assert tensorrt_v1_pb2.HealthResponse.FromString(reply).health


async def test_brpc_authentication_data_is_hidden_from_codecs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no capture of messages has it; frames in one piece and in several."""
    seen: list[bytes] = []
    decode = BrpcCodec.decode_call

    def noted(codec: BrpcCodec, wire: Frame, request_id: str = "", /) -> Call[Any]:
        seen.append(bytes(wire.payload[0]))
        return decode(codec, wire, request_id)

    monkeypatch.setattr(BrpcCodec, "decode_call", noted)
    async with guarded(tmp_path) as gateway:
        host, port = gateway.addresses["main.grps.brpc"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for size in (0, 200_000):
            writer.write(brpc_frame("Predict", 9, f"Bearer {KEY}", size=size))
            meta, _ = await read_brpc(reader)
            assert (meta.correlation_id, meta.response.error_code) == (9, 0)
        writer.close()
    assert [KEY.encode() in each for each in seen] == [False, False]
    assert len(seen[1]) > 200_000


async def test_the_command_health_names_the_credential(tmp_path: Path) -> None:
    """Over each protocol it says what the server says, and not that a model is not ready."""
    async with guarded(tmp_path) as gateway:
        app = command_line(["health"])
        for name, url in urls(gateway, "m").items():
            words = ["health", url, "--model", "m"]
            for more, expected in (
                ([], "a credential is missing"),
                (["--header", f"x-api-key={OTHER_KEY}"], "the API key is unknown"),
            ):
                found = await asyncio.to_thread(CliRunner().invoke, app, [*words, *more])
                assert (name, 1) == (name, found.exit_code)
                assert expected in found.output, name
                assert "not ready" not in found.output, name
