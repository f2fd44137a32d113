"""Certificates: from file paths to what each library wants, TLS 1.2 and newer only.

Every error names the file.  Keys are checked against their certificate when loaded, because the C
core of gRPC takes any bytes and fails each handshake instead.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """A listener's files, PEM each.

    Attributes:
        cert: Certificate, followed by its chain.
        key: Its private key, not encrypted.
        client_ca: Who signs the clients allowed in; None asks clients for no certificate.
    """

    cert: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """An upstream's files, PEM each.

    Attributes:
        ca: Who signs the upstream's certificate; None for the system's authorities.
        cert: Our certificate, where the upstream asks for one.
        key: Its private key, not encrypted; given together with *cert*.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Return a listener's context for asyncio and aiohttp.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, tls.cert, tls.key)
    if tls.client_ca is not None:
        _load_ca(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return an upstream's context for asyncio and aiohttp; it verifies host and chain.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not what it should be, or one of *cert* and *key* is missing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, tls.ca)
    pair = _client_pair(tls)
    if pair is not None:
        _load_pair(context, *pair)
    return context


def grpc_server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return a listener's credentials for gRPC. Raises as `server_context`."""
    server_context(tls)
    return grpc.ssl_server_credentials(
        [(_read(tls.key), _read(tls.cert))],
        root_certificates=None if tls.client_ca is None else _read(tls.client_ca),
        require_client_auth=tls.client_ca is not None,
    )


def grpc_channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Return an upstream's credentials for gRPC. Raises as `client_context`."""
    context = client_context(tls)
    pair = _client_pair(tls)
    return grpc.ssl_channel_credentials(
        root_certificates=_system_roots(context) if tls.ca is None else _read(tls.ca),
        private_key=None if pair is None else _read(pair[1]),
        certificate_chain=None if pair is None else _read(pair[0]),
    )


def _system_roots(context: ssl.SSLContext) -> bytes | None:
    """Return the authorities a default context trusts; None, for grpcio's own, if it has none."""
    roots = [ssl.DER_cert_to_PEM_cert(each) for each in context.get_ca_certs(binary_form=True)]
    return "".join(roots).encode() or None


def _client_pair(tls: ClientTls) -> tuple[str, str] | None:
    if tls.cert is None and tls.key is None:
        return None
    if tls.cert is None or tls.key is None:
        missing, given = ("cert", tls.key) if tls.cert is None else ("key", tls.cert)
        raise ValueError(f"{given} is given without its {missing}, both are needed")
    return tls.cert, tls.key


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    for path in (cert, key):
        _read(path)
    try:
        # An empty password, so that an encrypted key is an error and not a question.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"{cert} and {key} are not a PEM certificate and its unencrypted key: {_why(error)}"
        ) from error


def _load_ca(context: ssl.SSLContext, path: str) -> None:
    _read(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(f"{path} holds no PEM certificates: {_why(error)}") from error


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror}") from error


def _why(error: ssl.SSLError | ValueError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason or str(error)
