"""Clients and credentials change without a restart."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from gateway.access.key_file import load_key_file, save_key_file
from gateway.api.start_error import StartError
from gateway.app import Gateway
from gateway.app.run.reload import check_restart
from gateway.config.load import load_text
from gateway.schema import open_inference_pb2
from tests.integration.access_kit import (
    KEY,
    NOW,
    brpc_frame,
    call,
    configuration,
    control_of,
    exchange,
    graphpipe_frame,
    infer_message,
    key_file,
    read_brpc,
    read_response,
)
from tests.integration.asking_kit import running
from tests.integration.cli_kit import Running
from tests.integration.cli_kit import gateway as command
from tests.integration.workers_kit import connect, eventually, two_workers

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
METADATA = "/inference.GRPCInferenceService/ServerMetadata"


def configured(transport: str = "native", **changes: Any) -> str:
    return json.dumps({**json.loads(configuration(transport)), **changes})


async def reload(gateway: Gateway, text: str, directory: Path) -> None:
    loaded = load_text(text, directory=directory)
    check_restart(gateway._graph.config, loaded)
    await gateway.reload(loaded)


async def status_of(gateway: Gateway, headers: dict[str, str] | None = None) -> int:
    return (await exchange(gateway.addresses["main.http"], "/v2", headers)).status


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_security_is_switched_on_by_a_reload(tmp_path: Path, transport: str) -> None:
    """Open connections end, and each carrier needs a credential from then on."""
    key_file(tmp_path)
    text = configured(transport, security={})
    async with running(text, tmp_path) as gateway:
        host, port = gateway.addresses["main.http"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_response(reader)).status == 200
        stream_host, stream_port = gateway.addresses["main.graphpipe.tcp"].split(":")
        stream, stream_writer = await asyncio.open_connection(stream_host, int(stream_port))
        stream_writer.write(graphpipe_frame())
        await stream.readexactly(4)
        await reload(gateway, configured(transport), tmp_path)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        with suppress(ConnectionResetError):
            await asyncio.wait_for(stream.read(), 20)
        writer.close()
        stream_writer.close()
        assert await status_of(gateway) == 401
        assert await status_of(gateway, {"x-api-key": KEY}) == 200
        grpc = gateway.addresses["main.grpc"]
        assert (await call(grpc, METADATA))[0].name == "UNAUTHENTICATED"
        assert (await call(grpc, METADATA, metadata=[("x-api-key", KEY)]))[0].name == "OK"
        host, port = gateway.addresses["main.grps.brpc"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(brpc_frame("ServerMetadata"))
        assert (await read_brpc(reader))[0].response.error_code == 1004
        writer.close()
        await reload(gateway, text, tmp_path)
        assert await status_of(gateway) == 200
        assert (await call(grpc, METADATA))[0].name == "OK"


async def test_a_client_is_disabled_by_a_reload(tmp_path: Path) -> None:
    """Its key is refused, also on a connection that has used it."""
    key_file(tmp_path)
    request = f"GET /v2 HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\n\r\n".encode()
    async with running(configured(), tmp_path) as gateway:
        host, port = gateway.addresses["main.http"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for enabled, status in ((True, 200), (False, 401), (True, 200)):
            text = configured(clients={"fraud": {"enabled": enabled}})
            await reload(gateway, text, tmp_path)
            writer.write(request)
            assert (await read_response(reader)).status == status
        writer.close()


async def test_a_reload_with_a_broken_key_file_changes_nothing(tmp_path: Path) -> None:
    """The error names the key and the file."""
    key_file(tmp_path)
    (tmp_path / "broken.yaml").write_text("version: 9")
    async with running(configured(), tmp_path) as gateway:
        with pytest.raises(StartError, match=r"security\.keys\.file: broken\.yaml: expected a"):
            await reload(gateway, configured(security={"keys": {"file": "broken.yaml"}}), tmp_path)
        assert await status_of(gateway, {"x-api-key": KEY}) == 200


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_a_stream_ends_at_its_next_message_after_its_key_is_revoked(
    tmp_path: Path, transport: str
) -> None:
    """The messages before it have their replies."""
    path = key_file(tmp_path)
    async with (
        running(configured(transport), tmp_path) as gateway,
        aio.insecure_channel(gateway.addresses["main.grpc"]) as channel,
    ):
        stream = channel.stream_stream(STREAM)(metadata=[("x-api-key", KEY)], timeout=60)
        await stream.write(infer_message())
        reply = open_inference_pb2.ModelStreamInferResponse.FromString(await stream.read())
        assert reply.error_message
        save_key_file(path, load_key_file(path).revoked("k1", NOW))
        await control_of(gateway).look()
        await stream.write(infer_message())
        with pytest.raises(aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code().name == "UNAUTHENTICATED"
        assert caught.value.details() == "the API key is revoked"


def test_all_workers_refuse_a_revoked_key(tmp_path: Path) -> None:
    """Each looks at the file itself; a command revokes the key."""
    path = key_file(tmp_path)

    def statuses(running: Running) -> set[int]:
        found = set()
        for _ in range(20):
            with closing(connect(running)) as connection:
                connection.request("GET", "/v2", headers={"x-api-key": KEY})
                found.add(connection.getresponse().status)
        return found

    with two_workers(tmp_path, more="security: {keys: {file: keys.yaml}}") as running:
        assert {200} == statuses(running)
        assert 0 == command("keys", "revoke", "k1", "--file", str(path)).returncode
        eventually(lambda: statuses(running) == {401})
