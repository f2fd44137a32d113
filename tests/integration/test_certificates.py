"""Renewed certificates, keys and authorities of listeners and upstreams, without a restart."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import structlog
import trustme

from gateway.app import Gateway
from gateway.app.admin.changes import reload_response
from gateway.app.run.reload import Reloader
from gateway.config.load import load_text
from tests.integration import http_kit
from tests.integration.asking_kit import running
from tests.integration.cli_kit import gateway, serving
from tests.integration.tls_kit import client_side, handshake, write_authorities, write_pair
from tests.integration.workers_kit import eventually

LISTENER = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    transport: {transport}
    default_model: simple
    streams:
      - {{protocol: graphpipe, address: "127.0.0.1:0"}}
      - {{protocol: grps, address: "127.0.0.1:0"}}
    tls: {{cert: server.pem, key: server.key{more}}}
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
models:
  simple: {{backend: python, options: {{callable: "gateway.backends.examples:simple"}}}}
  counting: {{backend: python, options: {{callable: "tests.integration.reload_kit:count_1"}}}}
"""
TRANSPORTS = pytest.mark.parametrize("transport", ["native", "reference"])
_ROW = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
SIMPLE = {"inputs": [{"name": f"INPUT{number}", **_ROW} for number in range(2)]}
_LIVE = "/inference.GRPCInferenceService/ServerLive"


def listener(transport: str, more: str = "") -> str:
    return LISTENER.format(transport=transport, more=more)


@TRANSPORTS
async def test_every_socket_of_a_listener_uses_renewed_files(
    transport: str, tmp_path: Path
) -> None:
    """New handshakes of HTTP, gRPC, GraphPipe and brpc see the new certificate, others go on."""
    authority = trustme.CA()
    old = write_pair(tmp_path, authority)
    trusting = client_side(authority, alpn=("h2", "http/1.1"))
    async with running(listener(transport), tmp_path) as gateway:
        addresses = gateway.addresses.values()
        before = [(await handshake(each, trusting)).certificate for each in addresses]
        connector = aiohttp.TCPConnector(ssl=client_side(authority))
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://{gateway.addresses['main.http']}/v2/health/live"
            async with session.get(url) as response:
                assert 200 == response.status
            new = write_pair(tmp_path, authority)
            await gateway._certificates.renew()
            after = [(await handshake(each, trusting)).certificate for each in addresses]
            async with session.get(url) as response:  # on the connection of before
                assert 200 == response.status
            assert 1 == len(connector._conns)
    assert [old] * 4 == before
    assert [new] * 4 == after


async def test_a_switched_symlink_is_noticed_within_two_seconds(tmp_path: Path) -> None:
    """Contents are compared, as the links of mounted secrets change and not the files."""
    authority = trustme.CA()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write_pair(tmp_path / "one", authority)
    new = write_pair(tmp_path / "two", authority)
    (tmp_path / "data").symlink_to("one")
    for name in ("server.pem", "server.key"):
        (tmp_path / name).symlink_to(f"data/{name}")
    async with running(listener("native"), tmp_path) as gateway:
        (tmp_path / "switched").symlink_to("two")
        (tmp_path / "switched").rename(tmp_path / "data")

        async def shows_new() -> bool:
            made = await handshake(gateway.addresses["main.http"], client_side(authority))
            return made.certificate == new

        await http_kit.eventually(shows_new, 2.0)


@TRANSPORTS
async def test_broken_files_keep_the_old_pair(transport: str, tmp_path: Path) -> None:
    """Garbage, a missing file and a key of another certificate change nothing."""
    authority = trustme.CA()
    old = write_pair(tmp_path, authority)
    write_pair(tmp_path, authority, stem="other")
    certificate = (tmp_path / "server.pem").read_bytes()
    trusting = client_side(authority)
    async with running(listener(transport), tmp_path) as gateway:
        for broken in (b"garbage", None, (tmp_path / "other.pem").read_bytes()):
            if broken is None:
                (tmp_path / "server.pem").unlink()
            else:
                (tmp_path / "server.pem").write_bytes(broken)
            await gateway._certificates.renew()
            for name in ("main.http", "main.grpc"):
                address = gateway.addresses[name]
                assert old == (await handshake(address, trusting)).certificate
        (tmp_path / "server.pem").write_bytes(certificate)
        await gateway._certificates.renew()
        assert [] == gateway._certificates.take_replaced()


async def closed_within(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Return whether the server ends a connection in time."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read()
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


async def failure_of(call: Any) -> grpc.StatusCode | None:
    """Return the status of a call that fails; None for one that does not."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


@TRANSPORTS
async def test_connections_of_a_removed_authority_are_drained(
    transport: str, tmp_path: Path
) -> None:
    """Idle ones are closed; those whose certificate still verifies stay open."""
    authority, leaving, staying = trustme.CA(), trustme.CA(), trustme.CA()
    write_pair(tmp_path, authority)
    write_authorities(tmp_path / "clients.pem", leaving, staying)
    names = ["main.http", "main.graphpipe.tcp", "main.grps.brpc"]
    async with running(listener(transport, ", ca: clients.pem"), tmp_path) as gateway:
        opened = {}
        for client in (leaving, staying):
            for name in names:
                host, _, port = gateway.addresses[name].rpartition(":")
                context = client_side(authority, client)
                opened[client, name] = await asyncio.open_connection(
                    host, int(port), ssl=context, server_hostname="localhost"
                )
        await asyncio.sleep(0.1)  # the server has seen the last handshake
        write_authorities(tmp_path / "clients.pem", staying)
        await gateway._certificates.renew()
        gone = [await closed_within(opened[leaving, name][0], 2) for name in names]
        kept = [not await closed_within(opened[staying, name][0], 0.05) for name in names]
        for _, writer in opened.values():
            writer.transport.abort()
    assert [True] * 3 == gone
    assert [True] * 3 == kept


@TRANSPORTS
async def test_a_grpc_connection_of_a_removed_authority_finishes_its_calls(
    transport: str, tmp_path: Path
) -> None:
    """GOAWAY is sent, the call in progress ends, and the next handshake is refused."""
    authority, leaving, staying = trustme.CA(), trustme.CA(), trustme.CA()
    write_pair(tmp_path, authority)
    write_authorities(tmp_path / "clients.pem", leaving)
    pair = leaving.issue_cert("client.example")
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        pair.private_key_pem.bytes(),
        b"".join(each.bytes() for each in pair.cert_chain_pems),
    )
    async with running(listener(transport, ", ca: clients.pem"), tmp_path) as gateway:
        port = gateway.addresses["main.grpc"].rpartition(":")[2]
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            watching = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert b"\x08\x01" == await watching.read()
            live = channel.unary_unary(_LIVE)
            slow = live(b"", timeout=60)
            write_authorities(tmp_path / "clients.pem", staying)
            await gateway._certificates.renew()
            assert b"\x08\x01" == await slow

            async def failure() -> grpc.StatusCode | None:
                # grpcio cancels a call that reaches it after its GOAWAY.
                found = await failure_of(live(b""))
                return None if found is grpc.StatusCode.CANCELLED else found

            assert grpc.StatusCode.UNAVAILABLE is await http_kit.eventually(failure, 20)


async def test_a_session_is_not_resumed_after_the_authority_changed(tmp_path: Path) -> None:
    """A ticket of before would spare a client its certificate."""
    authority, clients = trustme.CA(), trustme.CA()
    write_pair(tmp_path, authority)
    write_authorities(tmp_path / "clients.pem", clients)
    context = client_side(authority, clients)
    # Before 1.3 the session is complete when the handshake is.
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def resumed(address: str, session: ssl.SSLSession | None) -> tuple[bool, Any]:
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as sock,
        ):
            return bool(sock.session_reused), sock.session

    async with running(listener("native", ", ca: clients.pem"), tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        _, session = await asyncio.to_thread(resumed, address, None)
        is_resumed, session = await asyncio.to_thread(resumed, address, session)
        assert is_resumed
        write_authorities(tmp_path / "clients.pem", clients, trustme.CA())
        await gateway._certificates.renew()
        is_resumed, _ = await asyncio.to_thread(resumed, address, session)
    assert not is_resumed


# The core of gRPC, which the reference implementation uses, tells nobody.
@pytest.mark.parametrize(
    ("transport", "name"),
    [
        ("native", "main.http"),
        ("native", "main.grpc"),
        ("native", "main.graphpipe.tcp"),
        ("native", "main.grps.brpc"),
        ("reference", "main.http"),
    ],
)
async def test_a_failed_handshake_is_one_line_in_the_log(
    transport: str, name: str, tmp_path: Path
) -> None:
    """Many within a second are one line, which names the reason."""
    authority = trustme.CA()
    write_pair(tmp_path, authority)
    with structlog.testing.capture_logs() as lines:
        async with running(listener(transport), tmp_path) as gateway:
            host, _, port = gateway.addresses[name].rpartition(":")
            for _ in range(5):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await reader.read()
                writer.close()
            found = await http_kit.eventually(
                lambda: [each for each in lines if each["event"] == "TLS handshake failed"]
            )
    assert 1 == len(found)
    assert ("listener main", "the client sent HTTP without TLS") == (
        found[0]["socket"],
        found[0]["reason"],
    )


async def test_a_reload_names_broken_files_and_replaced_ones(tmp_path: Path) -> None:
    """It is refused with file and reason, and the old pair serves; else it lists the sockets."""
    authority = trustme.CA()
    write_pair(tmp_path, authority)
    text = listener("native")
    own = Gateway(load_text(text, directory=tmp_path))
    reloader = Reloader(
        lambda: load_text(text, directory=tmp_path),
        load_text(text, directory=tmp_path),
        own.reload,
    )
    await own.start()
    try:
        certificate = (tmp_path / "server.pem").read_bytes()
        (tmp_path / "server.pem").write_bytes(certificate[:100])
        refused = reload_response(await reloader.reload())
        assert 422 == refused.status
        assert f"listeners[0].tls: {tmp_path / 'server.pem'} and" in refused.document["error"]
        new = write_pair(tmp_path, authority)
        applied = reload_response(await reloader.reload())
        address = own.addresses["main.http"]
        assert new == (await handshake(address, client_side(authority))).certificate
        again = reload_response(await reloader.reload())
    finally:
        await own.stop()
    assert (200, ["listener main"]) == (applied.status, applied.document["certificates"])
    assert [] == again.document["certificates"]


UPSTREAM = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: off}}
lifecycle: {{pre_stop: 0s, drain: 5s}}
upstreams:
  behind:
    url: "{url}"
    transport: {transport}
    tls: {{cert: client.pem, key: client.key, ca: authority.pem}}
"""


@TRANSPORTS
@pytest.mark.parametrize("carrier", ["http", "grpc"])
async def test_an_upstream_uses_renewed_files(carrier: str, transport: str, tmp_path: Path) -> None:
    """Its server accepts another authority alone from then on, and no call is lost meanwhile."""
    authority, old, new = trustme.CA(), trustme.CA(), trustme.CA()
    far, near = tmp_path / "far", tmp_path / "near"
    far.mkdir()
    near.mkdir()
    write_pair(far, authority)
    write_authorities(far / "clients.pem", old)
    write_authorities(near / "authority.pem", authority)
    write_pair(near, old, "client.example", stem="client")
    async with running(listener("native", ", ca: clients.pem"), far) as server:
        url = f"oip+{carrier}://{server.addresses[f'main.{carrier}']}"
        text = UPSTREAM.format(url=url, transport=transport)
        async with running(text, near) as gateway, aiohttp.ClientSession() as session:

            async def call(model: str, body: Any) -> int:
                path = f"/v2/models/{model}/infer"
                target = f"http://{gateway.addresses['main.http']}{path}"
                async with session.post(target, json=body) as response:
                    return response.status

            statuses = [await call("simple", SIMPLE)]
            write_authorities(far / "clients.pem", old, new)
            await server._certificates.renew()
            write_pair(near, new, "client.example", stem="client")
            await gateway._certificates.renew()
            statuses.append(await call("simple", SIMPLE))
            write_authorities(far / "clients.pem", new)
            await server._certificates.renew()
            statuses += [await call("simple", SIMPLE) for _ in range(3)]
            assert ["upstream behind"] == gateway._certificates.take_replaced()
    assert [200] * 5 == statuses


def test_all_workers_use_renewed_files(tmp_path: Path) -> None:
    """Each process looks at the files itself; a reload of all lists the listener once."""
    authority = trustme.CA()
    write_pair(tmp_path, authority)
    text = listener("native").replace("version: 1", "version: 1\nworkers: 2")
    text = text.replace("{address: off}", '{address: "127.0.0.1:0", metrics: null}')
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    with serving(str(path), patience_s=45) as found:
        new = write_pair(tmp_path, authority)

        async def seen() -> set[bytes | None]:
            address = found.addresses["main.http"]
            trusting = client_side(authority)
            return {(await handshake(address, trusting)).certificate for _ in range(20)}

        eventually(lambda: asyncio.run(seen()) == {new})
        admin = found.addresses["admin"]
        done = gateway("reload", "--admin", admin)
        assert ["listener main"] == json.loads(done.stdout)["certificates"]
        (tmp_path / "server.key").write_text("garbage")
        refused = gateway("reload", "--admin", admin)
        assert {new} == asyncio.run(seen())
    assert 1 == refused.returncode
    assert f"listeners[0].tls: {tmp_path / 'server.pem'} and" in refused.stderr
