"""The TLS files of one socket: compared by content, read again, used for new handshakes.

A listener and an upstream have an object `TlsFiles` each. Their servers and clients ask it for the
context of each handshake. `certificates` decides when files are read again.
"""

from __future__ import annotations

import ssl
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.transports.net.tls import ClientTls, ServerTls, client_pair, read_file, system_roots
from gateway.transports.net.x509 import certificates_in, valid_until

if TYPE_CHECKING:
    import grpc

_ATTEMPTS: Final = 3
_DER: Final = 2  # _ssl.ENCODING_DER

Alpn = tuple[str, ...]


class Authorities:
    """The authorities of client certificates.

    Args:
        certificates: Each in DER.
    """

    def __init__(self, certificates: Iterable[bytes]) -> None:
        self._certificates = frozenset(certificates)

    def verify(self, transport: Any) -> bool:
        """Return whether the certificate of a connection's client would be accepted now.

        A client that sent none passes. One whose session was resumed does not: OpenSSL keeps no
        chain of it.
        """
        handshake = None if transport is None else transport.get_extra_info("ssl_object")
        if handshake is None or handshake.getpeercert(binary_form=True) is None:
            return True
        verified = _chain(handshake, "get_verified_chain")
        if not verified or verified[-1] not in self._certificates:
            return False
        sent = _chain(handshake, "get_unverified_chain")
        return all(each in sent or each in self._certificates for each in verified)


def _chain(handshake: ssl.SSLObject, name: str) -> list[bytes]:
    """Return the certificates of a handshake, in DER; Python has public methods from 3.13 on."""
    public = getattr(handshake, name, None)
    if public is not None:
        return list(public())
    found = getattr(handshake._sslobj, name)()  # type: ignore[attr-defined]  # noqa: SLF001
    return [each.public_bytes(_DER) for each in found or ()]


class TlsUser(Protocol):
    """A server or a client with connections that were made with an earlier context."""

    def tls_renewed(self, authorities: Authorities | None) -> None:
        """Act on renewed files.

        Args:
            authorities: Those of client certificates, if they are others now; None for a client.
        """
        ...


class TlsContext:
    """The context of the next handshake of a server or client.

    Args:
        context: The first one.
        socket: What it belongs to, for the log: "listener main".

    Attributes:
        current: The context to use.
        authorities: Those of client certificates since they changed; None if they never did.
        socket: What it belongs to, for the log.
    """

    def __init__(self, context: ssl.SSLContext, socket: str = "") -> None:
        self.current = context
        self.authorities: Authorities | None = None
        self.socket = socket
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    def add_user(self, user: TlsUser) -> None:
        """Tell *user* of each renewal, as long as it exists."""
        self._users.add(user)

    def renew(self, context: ssl.SSLContext, authorities: Authorities | None = None) -> None:
        """Put another context in force, and tell the users."""
        self.current = context
        self.authorities = authorities or self.authorities
        for user in list(self._users):
            user.tls_renewed(authorities)


@dataclass(frozen=True, slots=True)
class TlsUpdate:
    """Files that are complete and fit together.

    Attributes:
        contents: By path.
        contexts: By the protocols of ALPN.
        expiries: Until when the certificates are valid, in seconds since the epoch, by path.
    """

    contents: Mapping[str, bytes]
    contexts: Mapping[Alpn, ssl.SSLContext]
    expiries: Mapping[str, float]


class TlsFiles:
    """The TLS files of one socket.

    Args:
        socket: Its name, for the log and the metrics: "listener main", "upstream a".
        tls: Which files, and how they are used.

    Attributes:
        socket: What it belongs to, for the log.
        tls: The settings that name the files.
        contents: The contents in force, by path.
        expiries: Until when the certificates in force are valid, by path.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has invalid content.
    """

    def __init__(self, socket: str, tls: ServerTls | ClientTls) -> None:
        self.socket = socket
        self.tls = tls
        update = _load(tls, [()])
        self.contents = update.contents
        self.expiries = update.expiries
        self._contexts: dict[Alpn, TlsContext] = {
            alpn: TlsContext(context, socket) for alpn, context in update.contexts.items()
        }
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    def context(self, *alpn: str) -> TlsContext:
        """Return the context that offers the protocols *alpn*; the same one each time."""
        found = self._contexts.get(alpn)
        if found is None:
            found = self._contexts[alpn] = TlsContext(self.tls.context(alpn), self.socket)
        return found

    def add_user(self, user: TlsUser) -> None:
        """Tell *user*, which uses no context, of each renewal, as long as it exists."""
        self._users.add(user)

    def read(self) -> TlsUpdate | None:
        """Read the files again; None if they are as before. It may be called on a thread.

        Raises:
            OSError: A file cannot be read.
            ValueError: A file has invalid content, or does not fit to another one.
        """
        if _contents(self.tls.files) == self.contents:
            return None
        return _load(self.tls, list(self._contexts))

    def apply(self, update: TlsUpdate) -> None:
        """Put files that were read in force, for new handshakes."""
        ca = self.tls.ca
        authorities = None
        is_server = isinstance(self.tls, ServerTls)
        if is_server and ca is not None and update.contents[ca] != self.contents[ca]:
            authorities = Authorities(certificates_in(update.contents[ca]))
        self.contents, self.expiries = update.contents, update.expiries
        for alpn, context in update.contexts.items():
            self._contexts[alpn].renew(context, authorities)
        for user in list(self._users):
            user.tls_renewed(authorities)


def _load(tls: ServerTls | ClientTls, alpns: Sequence[Alpn]) -> TlsUpdate:
    """Read all files of one state of the file system, and check them."""
    for _ in range(_ATTEMPTS):
        contents = _contents(tls.files)
        contexts = {alpn: tls.context(alpn) for alpn in alpns}
        expiries = _expiries(tls, contents)
        if _contents(tls.files) == contents:
            return TlsUpdate(contents, contexts, expiries)
    raise ValueError(f"{', '.join(tls.files)} change while they are read")


def _contents(paths: Iterable[str]) -> dict[str, bytes]:
    return {path: read_file(path) for path in paths}


def _expiries(tls: ServerTls | ClientTls, contents: Mapping[str, bytes]) -> dict[str, float]:
    """Return the end of each certificate with its chain; of authorities, that of the last one."""
    ends = {path: _ends(contents[path]) for path in contents}
    found = {path: min(ends[path]) for path in tls.certificate_files if ends[path]}
    return {**found, tls.ca: max(ends[tls.ca])} if tls.ca is not None and ends[tls.ca] else found


def _ends(pem: bytes) -> list[float]:
    return [valid_until(each) for each in certificates_in(pem)]


def grpc_server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return a listener's credentials for gRPC, which ask for the files of each handshake."""
    import grpc  # noqa: PLC0415  # slow; only the reference transports need it

    tls = files.tls
    if not isinstance(tls, ServerTls):
        raise TypeError(f"{files.socket} is no listener")

    def configuration() -> Any:
        contents = files.contents
        return grpc.ssl_server_certificate_configuration(
            [(contents[key], contents[cert]) for cert, key in tls.pairs],
            root_certificates=None if tls.ca is None else contents[tls.ca],
        )

    return grpc.dynamic_ssl_server_credentials(
        configuration(), configuration, require_client_authentication=tls.ca is not None
    )


def grpc_channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Return an upstream's credentials for gRPC, with the files in force."""
    import grpc  # noqa: PLC0415  # as above

    tls, contents = files.tls, files.contents
    pair = client_pair(tls) if isinstance(tls, ClientTls) else None
    return grpc.ssl_channel_credentials(
        root_certificates=system_roots() if tls.ca is None else contents[tls.ca],
        private_key=None if pair is None else contents[pair[1]],
        certificate_chain=None if pair is None else contents[pair[0]],
    )
