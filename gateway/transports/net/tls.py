"""TLS settings: from file paths to what asyncio, aiohttp and grpcio need; TLS 1.2 and newer only.

Every error names the file.  Keys are checked against their certificates at load time, because the C
core of gRPC accepts any bytes and then fails each handshake.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import grpc

TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of what a TLS server sends to a client without TLS."""

MAYBE_TLS: Final = "if it needs TLS on this port, add `tls: {}` to the upstream"
"""A hint for a server that closes a new connection without a word, as many with TLS do."""

# What a server without TLS sends instead of a handshake, by the names of OpenSSL.
_PLAIN: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The files of a listener, each in PEM format.

    Attributes:
        cert: The certificate, followed by its chain.
        key: Its private key, not encrypted.
        client_ca: The authority of client certificates; None to request no certificates.
    """

    cert: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The files of an upstream, each in PEM format.

    Attributes:
        ca: The authority of the upstream's certificate; None for the system's authorities.
        cert: The client certificate, if the upstream requires one.
        key: Its private key, not encrypted; required with *cert*.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Return a listener's context for asyncio and aiohttp.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has invalid content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, tls.cert, tls.key)
    if tls.client_ca is not None:
        _load_ca(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def negotiated_http2(transport: Any) -> bool:
    """Return whether the client of a connection has chosen HTTP/2 in its handshake."""
    handshake = transport.get_extra_info("ssl_object")
    return handshake is not None and handshake.selected_alpn_protocol() == "h2"


def connect_failure_text(error: OSError) -> str:
    """Return why a connection was not made, and what to change if the server has no TLS."""
    if isinstance(error, ssl.SSLError) and error.reason in _PLAIN:
        return "it uses no TLS on this port; remove `tls` from the upstream"
    return str(error)


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return an upstream's context for asyncio and aiohttp; it verifies host and chain.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has invalid content, or only one of *cert* and *key* is set.
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
    """Return a listener's credentials for gRPC. Raises what `server_context` raises."""
    import grpc  # noqa: PLC0415  # slow; only the reference transports need it

    server_context(tls)
    return grpc.ssl_server_credentials(
        [(_read(tls.key), _read(tls.cert))],
        root_certificates=None if tls.client_ca is None else _read(tls.client_ca),
        require_client_auth=tls.client_ca is not None,
    )


def grpc_channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Return an upstream's credentials for gRPC. Raises what `client_context` raises."""
    import grpc  # noqa: PLC0415  # as above

    context = client_context(tls)
    pair = _client_pair(tls)
    return grpc.ssl_channel_credentials(
        root_certificates=_system_roots(context) if tls.ca is None else _read(tls.ca),
        private_key=None if pair is None else _read(pair[1]),
        certificate_chain=None if pair is None else _read(pair[0]),
    )


def _system_roots(context: ssl.SSLContext) -> bytes | None:
    """Return the authorities that the system trusts; None if there are none."""
    roots = [ssl.DER_cert_to_PEM_cert(each) for each in context.get_ca_certs(binary_form=True)]
    return "".join(roots).encode() or None


def _client_pair(tls: ClientTls) -> tuple[str, str] | None:
    if tls.cert is None and tls.key is None:
        return None
    if tls.cert is None or tls.key is None:
        missing, given = ("cert", tls.key) if tls.cert is None else ("key", tls.cert)
        raise ValueError(f"{given} is given without its {missing}; expected both or neither")
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
