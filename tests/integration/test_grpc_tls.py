"""TLS and mutual TLS of the gRPC transports, with certificates made for the test."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
import trustme

from gateway.ir.errors import NotSent
from gateway.transports.net import tls
from gateway.transports.net.tls_files import TlsFiles
from tests.integration.grpc_echo import Answers, ask, calling, echo, serving


@dataclass(frozen=True)
class Files:
    """Paths of one authority and two certificates of its making."""

    ca: str
    server: tls.ServerTls
    client: tls.ClientTls


def files_in(folder: Path) -> Files:
    """Make an authority, a server's certificate for 127.0.0.1 and localhost, and a client's."""
    folder.mkdir()
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    for name, cert in (
        ("server", ca.issue_cert("127.0.0.1", "localhost")),
        ("client", ca.issue_cert("client.example")),
    ):
        cert.private_key_pem.write_to_path(folder / f"{name}.key")
        for blob in cert.cert_chain_pems:
            blob.write_to_path(folder / f"{name}.pem", append=True)
    path = str(folder)
    return Files(
        f"{path}/ca.pem",
        tls.ServerTls(cert=f"{path}/server.pem", key=f"{path}/server.key"),
        tls.ClientTls(ca=f"{path}/ca.pem", cert=f"{path}/client.pem", key=f"{path}/client.key"),
    )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """One authority's files."""
    return files_in(tmp_path / "one")


@pytest.mark.usefixtures("grpc_makes")
async def test_tls_requires_a_trusted_authority(files: Files) -> None:
    """A client that trusts the authority succeeds; any other sends nothing."""
    good = tls.ClientTls(ca=files.ca)
    async with serving(Answers(echo), tls=files.server) as server:
        async with calling(server, tls=good) as client:
            assert b"x" == (await client.send(ask(), deadline=None)).view.tobytes()
        for stranger in (tls.ClientTls(), None):
            async with calling(server, tls=stranger) as client:
                with pytest.raises(NotSent):
                    await client.send(ask(), deadline=monotonic() + 30)


@pytest.mark.usefixtures("grpc_makes")
async def test_mutual_tls_requires_a_client_certificate(files: Files, tmp_path: Path) -> None:
    """With a client CA only clients with its certificates are accepted."""
    both = tls.ServerTls(cert=files.server.cert, key=files.server.key, client_ca=files.ca)
    other = files_in(tmp_path / "two").client
    wrong = tls.ClientTls(ca=files.ca, cert=other.cert, key=other.key)
    frontend = Answers(echo)
    async with serving(frontend, tls=both) as server:
        async with calling(server, tls=files.client) as client:
            assert b"x" == (await client.send(ask(), deadline=None)).view.tobytes()
        for refused in (tls.ClientTls(ca=files.ca), wrong):
            async with calling(server, tls=refused) as client:
                with pytest.raises(NotSent):
                    await client.send(ask(), deadline=monotonic() + 30)
    assert 1 == len(frontend.requests)


def test_tls_contexts_verify_peers(files: Files) -> None:
    """TLS 1.2 at least; clients verify host and chain; servers require a certificate on demand."""
    plain = tls.server_context(files.server)
    mutual = tls.server_context(
        tls.ServerTls(cert=files.server.cert, key=files.server.key, client_ca=files.ca)
    )
    client = tls.client_context(files.client)
    assert [ssl.TLSVersion.TLSv1_2] * 3 == [
        each.minimum_version for each in (plain, mutual, client)
    ]
    assert [ssl.CERT_NONE, ssl.CERT_REQUIRED, ssl.CERT_REQUIRED] == [
        each.verify_mode for each in (plain, mutual, client)
    ]
    assert client.check_hostname


def test_missing_file_is_named(files: Files, tmp_path: Path) -> None:
    """The error names each file that does not exist."""
    none = str(tmp_path / "none.pem")
    for broken in (
        tls.ServerTls(cert=none, key=files.server.key),
        tls.ServerTls(cert=files.server.cert, key=none),
        tls.ServerTls(cert=files.server.cert, key=files.server.key, client_ca=none),
    ):
        with pytest.raises(FileNotFoundError, match=f"cannot read {none}"):
            TlsFiles("listener main", broken)
    with pytest.raises(FileNotFoundError, match=f"cannot read {none}"):
        TlsFiles("upstream far", tls.ClientTls(ca=none))


def test_invalid_file_is_named(files: Files, tmp_path: Path) -> None:
    """A key of another certificate, garbage, and an invalid authority are named in the error."""
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    other = files_in(tmp_path / "two").server
    for broken, named in (
        (tls.ServerTls(cert=files.server.cert, key=other.key), other.key),
        (tls.ServerTls(cert=str(garbage), key=files.server.key), str(garbage)),
        (
            tls.ServerTls(cert=files.server.cert, key=files.server.key, client_ca=str(garbage)),
            str(garbage),
        ),
    ):
        with pytest.raises(ValueError, match=named):
            tls.server_context(broken)


@pytest.mark.parametrize("half", [tls.ClientTls(cert="c.pem"), tls.ClientTls(key="c.key")])
def test_certificate_and_key_require_each_other(half: tls.ClientTls) -> None:
    """The error names the missing half of a pair."""
    with pytest.raises(ValueError, match="is given without its"):
        tls.client_context(half)
