"""Certificates in files, and what a TLS port serves, for tests of renewal."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


def write_pair(folder: Path, authority: trustme.CA, *names: str, stem: str = "server") -> bytes:
    """Write a certificate for *names* with its key; return it in DER."""
    pair = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    (folder / f"{stem}.key").write_bytes(pair.private_key_pem.bytes())
    (folder / f"{stem}.pem").write_bytes(b"".join(each.bytes() for each in pair.cert_chain_pems))
    return ssl.PEM_cert_to_DER_cert(pair.cert_chain_pems[0].bytes().decode())


def write_authorities(path: Path, *authorities: trustme.CA) -> None:
    """Write the certificates of authorities."""
    path.write_bytes(b"".join(each.cert_pem.bytes() for each in authorities))


def client_side(
    authority: trustme.CA, own: trustme.CA | None = None, alpn: tuple[str, ...] = ()
) -> ssl.SSLContext:
    """Return a client's context that trusts *authority*; *own* issues its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    if own is not None:
        own.issue_cert("client.example").configure_cert(context)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


@dataclass(frozen=True)
class Handshake:
    """What a TLS port answered."""

    certificate: bytes | None
    alpn: str | None
    version: str | None


async def handshake(address: str, context: ssl.SSLContext, name: str = "localhost") -> Handshake:
    """Connect to a port with TLS, and return what it answered."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=name
    )
    found: ssl.SSLObject = writer.get_extra_info("ssl_object")
    answer = Handshake(
        found.getpeercert(binary_form=True), found.selected_alpn_protocol(), found.version()
    )
    writer.transport.abort()
    del reader
    return answer
