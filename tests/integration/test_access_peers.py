"""Clients that are known by their connection: certificates, trusted proxies, unix users."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.app import Gateway
from gateway.ir.identity import Identity
from gateway.policies.observe import Observe
from tests.integration.access_kit import KEY, configuration, exchange, graphpipe_frame, key_file
from tests.integration.asking_kit import running


class Seen:
    """The identities of the calls that were observed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.identities: list[Identity] = []
        self.metadata: list[dict[str, str]] = []
        begin = Observe.__call__

        def noted(observe: Any, call: Any, /) -> Any:
            self.identities.append(call.context.client.identity)
            self.metadata.append(dict(call.context.metadata))
            return begin(observe, call)

        monkeypatch.setattr(Observe, "__call__", noted)

    @property
    def last(self) -> Identity:
        return self.identities[-1]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Note the client of each call."""
    return Seen(monkeypatch)


def configured(transport: str = "native", **changes: Any) -> str:
    document = json.loads(
        configuration(transport, **changes.pop("security", {"public_health": True}))
    )
    listener = document["listeners"][0] | changes.pop("listener", {})
    listener = {key: value for key, value in listener.items() if value is not None}
    return json.dumps({**document, **changes, "listeners": [listener]})


class Certificates:
    """A server with mutual TLS, and client certificates with chosen names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._server = trustme.CA()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clients")])
        authority = self._signed(self._name, self._key, is_authority=True)
        (directory / "clients.pem").write_bytes(authority)
        issued = self._server.issue_cert("localhost", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))

    def _signed(
        self, name: x509.Name, key: Any, names: Any = (), *, is_authority: bool = False
    ) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def context(self, common: str = "", uri: str = "", dns: str = "") -> ssl.SSLContext:
        """Return a client's context, with a certificate of these names if there is one."""
        context = ssl.create_default_context()
        self._server.configure_trust(context)
        if common or uri or dns:
            key = ec.generate_private_key(ec.SECP256R1())
            names: list[Any] = [x509.DNSName(dns)] if dns else []
            names += [x509.UniformResourceIdentifier(uri)] if uri else []
            subject = [x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else []
            pem = self._signed(x509.Name(subject), key, names) + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            path = self.directory / "client.pem"
            path.write_bytes(pem)
            context.load_cert_chain(path)
        return context

    @property
    def tls(self) -> dict[str, Any]:
        return {
            "cert": "server.pem",
            "key": "server.pem",
            "ca": "clients.pem",
            "client_certificates": "optional",
        }


async def get(address: str, context: ssl.SSLContext, headers: str = "") -> int:
    """Return the status of a request over TLS."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname="localhost"
    )
    writer.write(f"GET /v2 HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
    status = int((await asyncio.wait_for(reader.readline(), 20)).split()[1])
    writer.close()
    return status


CLIENTS = {
    "fraud": {"certificates": ["spiffe://example.com/ns/fraud/*", "dns:scorer.internal"]},
    "common": {"certificates": ["cn:scorer"], "groups": ["old"]},
    "off": {"certificates": ["cn:off"], "enabled": False},
}


@asynccontextmanager
async def with_certificates(
    directory: Path, transport: str = "native", **changes: Any
) -> AsyncIterator[tuple[Gateway, Certificates]]:
    certificates = Certificates(directory)
    listener = {"tls": certificates.tls, "grpc": None, "streams": None}
    text = configured(transport, listener=listener, clients=CLIENTS, **changes)
    async with running(text, directory) as gateway:
        yield gateway, certificates


@pytest.mark.parametrize("transport", ["native", "reference"])
async def test_certificates_name_clients(tmp_path: Path, seen: Seen, transport: str) -> None:
    """A URI comes before a DNS name, and that before a common name."""
    async with with_certificates(tmp_path, transport) as (gateway, certificates):
        address = gateway.addresses["main.http"]
        for names, client in (
            ({"uri": "spiffe://example.com/ns/fraud/a"}, "fraud"),
            ({"dns": "scorer.internal", "common": "scorer"}, "fraud"),
            ({"common": "scorer"}, "common"),
            ({"uri": "spiffe://example.com/ns/other", "common": "scorer"}, "common"),
        ):
            assert await get(address, certificates.context(**names)) == 200
            assert seen.last.name == client, [each.name for each in seen.identities]
        for names in ({}, {"common": "somebody"}, {"common": "off"}, {"dns": "scorer"}):
            assert (names, await get(address, certificates.context(**names))) == (names, 401)


async def test_unlisted_certificates_have_their_first_name(tmp_path: Path, seen: Seen) -> None:
    """With `unlisted: accept`; without it they count as none."""
    security = {"certificates": {"unlisted": "accept"}}
    async with with_certificates(tmp_path, security=security) as (gateway, certificates):
        context = certificates.context(dns="other.internal", common="x")
        assert await get(gateway.addresses["main.http"], context) == 200
        assert seen.last.name == "cert:other.internal"
        context = certificates.context(uri="spiffe://example.com/x", common="x")
        assert await get(gateway.addresses["main.http"], context) == 200
        assert seen.last.name == "cert:spiffe://example.com/x"


async def test_a_key_comes_before_a_certificate(tmp_path: Path, seen: Seen) -> None:
    """Each credential must be right."""
    key_file(tmp_path)
    security = {"keys": {"file": "keys.yaml"}}
    async with with_certificates(tmp_path, security=security) as (gateway, certificates):
        address = gateway.addresses["main.http"]
        context = certificates.context(common="scorer")
        assert await get(address, context, f"x-api-key: {KEY}\r\n") == 200
        assert (seen.last.name, seen.last.credential) == ("fraud", "k1")
        assert await get(address, context, "x-api-key: wrong\r\n") == 401
        off = certificates.context(common="off")
        assert await get(address, off, f"x-api-key: {KEY}\r\n") == 401


PROXY = {
    "name": "edge",
    "client_header": "X-Forwarded-User",
    "groups_header": "x-forwarded-groups",
}


async def test_a_trusted_proxy_names_clients(tmp_path: Path, seen: Seen) -> None:
    """With groups of its own; names that are not listed are refused or get its prefix."""
    proxy = {**PROXY, "addresses": ["127.0.0.0/8"]}
    clients = {"fraud": {"proxied": ["fraud", "f-*"], "groups": ["finance"]}}
    text = configured(security={"proxies": [proxy]}, clients=clients)
    async with running(text, tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        headers = {"X-FORWARDED-USER": "f-1", "x-forwarded-groups": "a, b,"}
        assert (await exchange(address, "/v2", headers)).status == 200
        assert (seen.last.name, set(seen.last.groups)) == ("fraud", {"finance", "a", "b"})
        assert (await exchange(address, "/v2", {"x-forwarded-user": "other"})).status == 401
        assert (await exchange(address, "/v2")).status == 401
    text = configured(security={"proxies": [{**proxy, "unlisted": "accept"}]}, clients=clients)
    async with running(text, tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        assert (await exchange(address, "/v2", {"x-forwarded-user": "other"})).status == 200
        assert seen.last.name == "edge:other"


async def test_the_headers_of_a_proxy_are_dropped_from_others(tmp_path: Path, seen: Seen) -> None:
    """As are credentials, behind the authenticator."""
    key_file(tmp_path)
    proxy = {**PROXY, "addresses": ["10.0.0.0/8"]}
    security = {"keys": {"file": "keys.yaml"}, "proxies": [proxy]}
    clients = {"fraud": {"proxied": ["*"]}, "admin": {"proxied": ["admin"]}}
    async with running(configured(security=security, clients=clients), tmp_path) as gateway:
        address = gateway.addresses["main.http"]
        headers = {"x-forwarded-user": "admin"}
        assert (await exchange(address, "/v2", headers)).status == 401
        headers |= {"x-api-key": KEY, "Authorization": f"Bearer {KEY}", "x-tenant": "t"}
        assert (await exchange(address, "/v2", headers)).status == 200
        assert seen.last.name == "fraud"
        assert seen.metadata[-1].keys() & {
            "x-forwarded-user",
            "x-api-key",
            "authorization",
            "x-tenant",
        } == {"x-tenant"}


async def test_a_unix_socket_names_its_user(tmp_path: Path, seen: Seen) -> None:
    """By its uid; a uid that is not listed is refused."""
    for users, is_known in (([os.getuid()], True), ([os.getuid() + 1], False)):
        path = tmp_path / "model.sock"
        stream = {"protocol": "graphpipe", "address": f"unix:{path}"}
        listener = {"grpc": None, "http": None, "streams": [stream]}
        text = configured(listener=listener, clients={"scorer": {"unix_users": users}})
        async with running(text, tmp_path):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(graphpipe_frame())
            size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 20), "little")
            body = await reader.readexactly(size)
            assert (b"a credential is missing" in body) is not is_known
            writer.close()
        if is_known:
            assert seen.last.name == "scorer"


@pytest.mark.parametrize(
    ("authentication", "statuses"),
    [("required", (401, 200, 401)), ("optional", (200, 200, 401)), ("off", (200, 200, 200))],
)
async def test_modes_of_a_listener(
    tmp_path: Path, seen: Seen, authentication: str, statuses: tuple[int, ...]
) -> None:
    """Of no credential, a right one and a wrong one."""
    key_file(tmp_path)
    text = configured(
        security={"keys": {"file": "keys.yaml"}}, listener={"authentication": authentication}
    )
    async with running(text, tmp_path) as gateway:
        found = []
        for headers in ({}, {"x-api-key": KEY}, {"x-api-key": "wrong"}):
            reply = await exchange(gateway.addresses["main.http"], "/v2", headers)
            found.append(reply.status)
        assert tuple(found) == statuses
        names = [each.name for each in seen.identities]
        assert (
            names
            == {
                "required": ["fraud"],
                "optional": ["anonymous", "fraud"],
                "off": ["anonymous"] * 3,
            }[authentication]
        )
