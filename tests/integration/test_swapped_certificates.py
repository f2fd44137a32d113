"""Pairs of certificate and key that are replaced each second, under load on each carrier of two workers."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import grpc
import pytest
import trustme

from gateway.protocols.graphpipe.flatbuffer_writer import METADATA_REQUEST
from tests.integration.access_kit import brpc_frame, read_brpc
from tests.integration.cli_kit import Running, gateway, serving
from tests.integration.tls_kit import client_side, handshake, write_pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CONFIG = """
version: 1
workers: 2
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    default_model: simple
    streams:
      - {protocol: graphpipe, address: "127.0.0.1:0"}
      - {protocol: grps, address: "127.0.0.1:0"}
    tls: {cert: server.pem, key: server.key}
admin: {address: "127.0.0.1:0", metrics: null}
lifecycle: {pre_stop: 0s, drain: 5s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""
SOCKETS = ("main.http", "main.grpc", "main.graphpipe.tcp", "main.grps.brpc")
SWAPS = 30
PATIENCE_S = 30.0  # two seconds, and what a busy machine takes
HTTP_REQUEST = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LIVE = "/inference.GRPCInferenceService/ServerLive"


class Load:
    """Clients of each carrier, each call on a connection of its own.

    Attributes:
        calls: The number of calls with a right reply, by carrier.
        failures: What went wrong.
    """

    def __init__(self, running: Running, authority: trustme.CA) -> None:
        self._addresses = running.addresses
        self._context = client_side(authority)
        self._root = authority.cert_pem.bytes()
        self.calls: dict[str, int] = {}
        self.failures: list[str] = []
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        """Make calls on all carriers until the end."""
        makers: dict[str, Callable[[], Awaitable[None]]] = {
            "http": self._http,
            "grpc": self._grpc,
            "graphpipe": self._graphpipe,
            "brpc": self._brpc,
        }
        await asyncio.gather(*(self._repeat(name, make) for name, make in makers.items()))

    def end(self) -> None:
        """Let the calls in progress be the last ones."""
        self._is_over.set()

    async def _repeat(self, name: str, make: Callable[[], Awaitable[None]]) -> None:
        while not self._is_over.is_set():
            try:
                async with asyncio.timeout(45):
                    await make()
            except Exception as error:  # noqa: BLE001  # each is a finding
                self.failures.append(f"{name}: {error!r}")
            else:
                self.calls[name] = self.calls.get(name, 0) + 1
            await asyncio.sleep(0.01)

    async def _connected(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._addresses[name].rpartition(":")
        return await asyncio.open_connection(
            host, int(port), ssl=self._context, server_hostname="localhost"
        )

    async def _http(self) -> None:
        reader, writer = await self._connected("main.http")
        with closing(writer):
            writer.write(HTTP_REQUEST)
            assert (await reader.read()).startswith(b"HTTP/1.1 200")

    async def _grpc(self) -> None:
        credentials = grpc.ssl_channel_credentials(self._root)
        # Channels with equal arguments share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = self._addresses["main.grpc"]
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            await channel.unary_unary(LIVE)(b"")

    async def _graphpipe(self) -> None:
        reader, writer = await self._connected("main.graphpipe.tcp")
        with closing(writer):
            writer.write(struct.pack("<I", len(METADATA_REQUEST)) + METADATA_REQUEST)
            (size,) = struct.unpack("<I", await reader.readexactly(4))
            assert b"simple" in await reader.readexactly(size)

    async def _brpc(self) -> None:
        reader, writer = await self._connected("main.grps.brpc")
        with closing(writer):
            writer.write(brpc_frame("CheckLiveness"))
            meta, _ = await read_brpc(reader)
            assert meta.response.error_code == 0


async def shown(running: Running, context: ssl.SSLContext) -> set[bytes | None]:
    """Return the certificates that all sockets of both workers show, as far as handshakes tell."""
    found = [
        await handshake(running.addresses[name], context) for name in SOCKETS for _ in range(4)
    ]
    return {each.certificate for each in found}


async def swap(running: Running, authority: trustme.CA, folder: Path, load: Load) -> list[int]:
    """Replace the pair each second; return the swaps after which a socket was late."""
    context, late = client_side(authority), []
    for number in range(SWAPS):
        began = time.monotonic()
        new = await asyncio.to_thread(write_pair, folder, authority)
        if number % 5 == 4:  # all sockets must show it before the next swap
            deadline = began + PATIENCE_S
            while await shown(running, context) != {new}:
                if time.monotonic() > deadline:
                    late.append(number)
                    break
                await asyncio.sleep(0.05)
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
    load.end()
    return late


def test_pairs_swapped_each_second_lose_no_call(tmp_path: Path) -> None:
    """All calls and handshakes succeed, and each socket of each worker shows new certificates."""
    authority = trustme.CA()
    write_pair(tmp_path, authority)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG)
    with serving(str(file), patience_s=45) as running:

        async def main() -> tuple[list[int], Load]:
            load = Load(running, authority)
            late, _ = await asyncio.gather(swap(running, authority, tmp_path, load), load.run())
            return late, load

        late, load = asyncio.run(main())
        assert [] == load.failures
        assert min(load.calls.get(name, 0) for name in ("http", "grpc", "graphpipe", "brpc")) > 10
        assert [] == late


def broken_pairs(authority: trustme.CA) -> dict[str, tuple[bytes, bytes]]:
    """Return pairs of certificate and key that cannot be used."""
    other = trustme.CA().issue_cert("localhost")
    pair = authority.issue_cert("localhost")
    cert = b"".join(each.bytes() for each in pair.cert_chain_pems)
    key = pair.private_key_pem.bytes()
    lines = cert.splitlines(keepends=True)
    return {
        "no certificate": (b"", key),
        "no key": (cert, b""),
        "garbage for a certificate": (b"garbage", key),
        "garbage for a key": (cert, b"garbage"),
        "the key of another": (cert, other.private_key_pem.bytes()),
        "the certificate of another": (other.cert_chain_pems[0].bytes(), key),
        "half a certificate": (b"".join(lines[: len(lines) // 2]), key),
        "half a key": (cert, key[: len(key) // 2]),
        "a changed certificate": (lines[0] + b"AAAA" + b"".join(lines[1:]), key),
        "swapped files": (key, cert),
    }


def test_broken_pairs_keep_the_old_one_and_a_reload_names_the_file(tmp_path: Path) -> None:
    """`gateway reload` exits with 1, and the sockets of both workers show the old certificate."""
    authority = trustme.CA()
    old = write_pair(tmp_path, authority)
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG)
    with serving(str(file), patience_s=45) as running:
        admin = running.addresses["admin"]
        for name, (cert, key) in broken_pairs(authority).items():
            (tmp_path / "server.pem").write_bytes(cert)
            (tmp_path / "server.key").write_bytes(key)
            done = gateway("reload", admin)
            assert (name, 1) == (name, done.returncode)
            assert any(str(tmp_path / each) in done.stderr for each in ("server.pem", "server.key"))
            assert {old} == asyncio.run(shown(running, client_side(authority))), name
        new = write_pair(tmp_path, authority)
        done = gateway("reload", admin)
        assert (0, ["listener main"]) == (done.returncode, json.loads(done.stdout)["certificates"])
        assert {new} == asyncio.run(shown(running, client_side(authority)))
