"""TLS settings: from file paths to what asyncio and aiohttp need; TLS 1.2 and newer only.

Every error names the file.  Keys are checked against their certificates at load time, because the C
core of gRPC accepts any bytes and then fails each handshake.  `tls_files` reads the files again.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.transports.net.x509 import certificates_in, dns_names

TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of what a TLS server sends to a client without TLS."""

_REMEDY: Final = "add `tls: {}` to the upstream, or use a URL such as https:// or grpcs://"

MAYBE_TLS: Final = f"if it needs TLS on this port, {_REMEDY}"
"""A hint for a server that closes a new connection without a word, as many with TLS do."""

NEEDS_TLS: Final = f"it needs TLS on this port; {_REMEDY}"
"""Why a connection without TLS failed, and what to change."""

NO_TLS: Final = (
    "it uses no TLS on this port; remove `tls` from the upstream, or use a URL such as http:// or "
    "grpc://"
)
"""Why a connection with TLS failed, and what to change."""

_MAYBE_NO_TLS: Final = (
    "the server closed the connection in the TLS handshake; if it uses no TLS on this port, remove "
    "`tls` from the upstream, or use a URL such as http:// or grpc://"
)
"""Why a handshake had no reply, as with many servers without TLS."""

_TRUST: Final = (
    "authorities other than the system's are set with `tls: {ca: FILE}` or --tls-ca FILE"
)

# What a server without TLS sends instead of a handshake, by the names of OpenSSL.
_PLAIN: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS of a listener, with files in PEM format.

    Attributes:
        cert: The certificate, followed by its chain.
        key: Its private key, not encrypted.
        client_ca: The authorities of client certificates; None to request no certificates.
        requires_client: Whether a client without a certificate is refused, with *client_ca*.
        others: Further certificates with their keys, for the DNS names that they have.
        min_version: The oldest version of TLS.
    """

    cert: str
    key: str
    client_ca: str | None = None
    requires_client: bool = True
    others: tuple[tuple[str, str], ...] = ()
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All certificates with their keys; the first is for names that no other one has."""
        return ((self.cert, self.key), *self.others)

    @property
    def certificate_files(self) -> tuple[str, ...]:
        """The files of the own certificates."""
        return tuple(cert for cert, _ in self.pairs)

    @property
    def ca(self) -> str | None:
        """The authorities of the peers."""
        return self.client_ca

    @property
    def files(self) -> tuple[str, ...]:
        """All files."""
        files = [path for pair in self.pairs for path in pair]
        return (*files, *(() if self.client_ca is None else (self.client_ca,)))

    def context(self, alpn: Sequence[str] = ()) -> ssl.SSLContext:
        """Return a new context; see `server_context`."""
        return server_context(self, alpn)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS to an upstream, with files in PEM format.

    Attributes:
        ca: The authorities of the upstream's certificate; None for those of the system.
        cert: The client certificate, if the upstream requires one.
        key: Its private key, not encrypted; required with *cert*.
        verify: False to accept any certificate of the upstream.
        min_version: The oldest version of TLS.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    @property
    def certificate_files(self) -> tuple[str, ...]:
        """The files of the own certificates."""
        return () if self.cert is None else (self.cert,)

    @property
    def files(self) -> tuple[str, ...]:
        """All files."""
        return tuple(path for path in (self.cert, self.key, self.ca) if path is not None)

    def context(self, alpn: Sequence[str] = ()) -> ssl.SSLContext:
        """Return a new context; see `client_context`."""
        return client_context(self, alpn)


def server_context(tls: ServerTls, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Return a listener's context for asyncio and aiohttp.

    Args:
        tls: Its settings.
        alpn: The protocols that clients may choose from.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has invalid content.
    """
    default, *others = [_server_context(tls, pair, alpn) for pair in tls.pairs]
    if others:
        pairs = zip(tls.pairs[1:], others, strict=True)
        default.sni_callback = _ContextByName(
            _names_of(tls.cert), [(_names_of(cert), context) for (cert, _), context in pairs]
        )
    return default


def _server_context(tls: ServerTls, pair: tuple[str, str], alpn: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls.min_version
    _load_pair(context, *pair)
    if tls.client_ca is not None:
        _load_ca(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if tls.requires_client else ssl.CERT_OPTIONAL
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


class _ContextByName:
    """Chooses the context of a handshake by the server name that the client sends (SNI).

    Args:
        default: The names of the certificate for all other names.
        others: The names and the contexts of the others. A name comes before a wildcard, and else
            the first certificate counts.
    """

    def __init__(
        self, default: Sequence[str], others: Sequence[tuple[Sequence[str], ssl.SSLContext]]
    ) -> None:
        self._contexts: dict[str, ssl.SSLContext | None] = dict.fromkeys(default)
        for names, context in others:
            for name in names:
                self._contexts.setdefault(name, context)

    def __call__(self, handshake: Any, name: str | None, _default: ssl.SSLContext) -> None:
        """Change the context of a handshake if another certificate has its name."""
        name = (name or "").lower().rstrip(".")
        wildcard = f"*.{name.partition('.')[2]}"
        context = self._contexts.get(name if name in self._contexts else wildcard)
        if context is not None:
            handshake.context = context


def _names_of(cert: str) -> list[str]:
    found = certificates_in(read_file(cert))
    return dns_names(found[0]) if found else []


def negotiated_http2(transport: Any) -> bool:
    """Return whether the client of a connection has chosen HTTP/2 in its handshake."""
    handshake = transport.get_extra_info("ssl_object")
    return handshake is not None and handshake.selected_alpn_protocol() == "h2"


def connect_failure_text(error: OSError) -> str:
    """Return why a connection was not made, and what to change if TLS is the reason."""
    if isinstance(error, ssl.SSLError) and error.reason in _PLAIN:
        return NO_TLS
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        return f"certificate verify failed: {reason}; {_TRUST}"
    if isinstance(error, ssl.SSLEOFError) or (
        isinstance(error, ConnectionError) and not str(error)
    ):
        return _MAYBE_NO_TLS  # asyncio raises an error without a text
    return str(error) or type(error).__name__


def client_context(tls: ClientTls, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Return an upstream's context for asyncio and aiohttp; it verifies host and chain by default.

    Args:
        tls: Its settings.
        alpn: The protocols that the server may choose from.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has invalid content, or only one of *cert* and *key* is set.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = tls.min_version
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, tls.ca)
    pair = client_pair(tls)
    if pair is not None:
        _load_pair(context, *pair)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def system_roots() -> bytes | None:
    """Return the authorities that the system trusts in PEM format; None if there are none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    roots = [ssl.DER_cert_to_PEM_cert(each) for each in context.get_ca_certs(binary_form=True)]
    return "".join(roots).encode() or None


def client_pair(tls: ClientTls) -> tuple[str, str] | None:
    """Return the client certificate and its key; None without. Raises ValueError for one alone."""
    if tls.cert is None and tls.key is None:
        return None
    if tls.cert is None or tls.key is None:
        missing, given = ("cert", tls.key) if tls.cert is None else ("key", tls.cert)
        raise ValueError(f"{given} is given without its {missing}; expected both or neither")
    return tls.cert, tls.key


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    for path in (cert, key):
        read_file(path)
    try:
        # An empty password, so that an encrypted key is an error and not a question.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"{cert} and {key} are not a PEM certificate and its unencrypted key: {_why(error)}"
        ) from error


def _load_ca(context: ssl.SSLContext, path: str) -> None:
    read_file(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(f"{path} holds no PEM certificates: {_why(error)}") from error


def read_file(path: str) -> bytes:
    """Return the content of a file. Raises OSError that names it."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OSError(error.errno, f"cannot read {path}: {error.strerror}") from error


def _why(error: ssl.SSLError | ValueError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason or str(error)
