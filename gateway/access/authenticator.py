"""Names the client of each request of a listener by its credentials.

Each credential of a request must be right.  The client is that of the first kind present: key,
token, proxy, certificate, unix user.
"""

from __future__ import annotations

import binascii
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final, Literal, Protocol

from gateway.access.clients import CertificatePatterns, Clients, DisabledClient
from gateway.access.key_file import ApiKey, KeyFile
from gateway.api.access import Authenticator, Credentials, Fields, Peer
from gateway.config.access import ProxyConfig
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.errors import GatewayError, Unauthenticated
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.ir.limits import is_blank, names_in
from gateway.ir.texts import visible
from gateway.wire.heads.fields import texts_among
from gateway.wire.http import Headers

Mode = Literal["required", "optional", "off"]
OnFailure = Callable[[str, str, str], object]
"""Called for each refusal: the listener, the kind of the credential, the reason."""

Sent = list[tuple[str, str]]
"""The fields of a request that may be credentials, names in lower case."""

_AUTHORIZATION: Final = "authorization"
_MAX_PROXIED: Final = 4096
_MAX_SHOWN: Final = 128
_MAPPED_BITS: Final = 96


class InvalidCredential(Unauthenticated):
    """A credential that was sent is wrong.

    Args:
        message: What is wrong, without the credential.
        kind: "key", "jwt", "proxy", "certificate" or "unix".
        reason: Why, for the metric.
        credential: Its id, for the log only; "" if it is unknown.
    """

    was_sent = True

    def __init__(self, message: str, kind: str, reason: str, credential: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason
        self.credential = credential


class TokenReader(Protocol):
    """Verifies tokens."""

    def identity(self, token: str, address: str, clients: Clients, /) -> Identity:
        """Return whom a token names. Raises GatewayError."""
        ...


class Proxy:
    """A trusted proxy.

    Args:
        config: The proxy as the file describes it.
        networks: Its addresses.
    """

    def __init__(self, config: ProxyConfig, networks: Sequence[IPv4Network | IPv6Network]) -> None:
        self.config = config
        self._certificates = CertificatePatterns(
            (pattern, config.name) for pattern in config.certificates
        )
        known = [_normal(network) for network in networks]
        self._has_address = lru_cache(1024)(
            lambda address: any(ip_address(address) in network for network in known)
        )

    def is_peer(self, peer: Peer) -> bool:
        """Return whether *peer* is this proxy."""
        if any(self._certificates.client(name) is not None for name in peer.names):
            return True
        try:
            return bool(peer.address) and self._has_address(peer.address)
        except ValueError:  # an address with a zone
            return False


def _normal(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Return a network of IPv4 as such, where the file has it as IPv6: addresses are normal."""
    mapped = network.network_address.ipv4_mapped if network.version == 6 else None  # noqa: PLR2004
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


@dataclass(frozen=True, slots=True, eq=False)
class AccessRules:
    """What decides who calls. It is replaced as a whole when a file or the configuration changes.

    Attributes:
        clients: The clients of the configuration.
        keys: The API keys; None if there are none.
        key_header: The header with a key, in lower case.
        tokens: Verifies tokens; None if there are no issuers.
        proxies: The trusted proxies.
        other: Is asked where no credential names a client; None to refuse such requests.
        unlisted_certificates: Whether certificates of no client have a name of their own.
        public_health: Whether the health of the server needs no credential.
        keeps_authorization: Whether an upstream gets the header `authorization`.
        key_identities: The clients of valid keys that were used, by the key: SHA-256 takes most
            of the time of a look-up. Wrong keys are never here.
        proxied: The clients that proxies named, by proxy, client and groups. What is known of a
            client later is kept with the same object.
    """

    clients: Clients
    keys: KeyFile | None = None
    key_header: str = "x-api-key"
    tokens: TokenReader | None = None
    proxies: tuple[Proxy, ...] = ()
    other: Authenticator | None = None
    unlisted_certificates: bool = False
    public_health: bool = True
    keeps_authorization: bool = False
    key_identities: dict[str, Identity] = field(default_factory=dict, repr=False)
    proxied: BoundedDict[tuple[str, str, tuple[str, ...]], Identity] = field(
        default_factory=lambda: BoundedDict(_MAX_PROXIED)
    )
    _names: frozenset[str] = field(init=False)
    _hidden: frozenset[str] = field(init=False)
    _untrusted: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = {self.key_header} if self.keys is not None else set()
        if self.keys is not None or self.tokens is not None:
            names.add(_AUTHORIZATION)
        hidden = names - {_AUTHORIZATION} if self.keeps_authorization else names
        object.__setattr__(self, "_hidden", frozenset(hidden))
        headers = {proxy.config.client_header for proxy in self.proxies}
        headers.update(proxy.config.groups_header or "" for proxy in self.proxies)
        object.__setattr__(self, "_untrusted", frozenset(hidden | headers))
        object.__setattr__(self, "_names", frozenset(names | headers))

    def hidden(self, peer: Peer) -> frozenset[str]:
        """Return the headers that nothing behind the authenticator sees of a peer."""
        if not self.proxies or any(proxy.is_peer(peer) for proxy in self.proxies):
            return self._hidden
        return self._untrusted

    def sent(self, fields: Fields) -> Sent:
        """Return the fields that may be credentials, names in lower case."""
        if type(fields) is Headers:
            return texts_among(fields.pairs, self._names)
        return texts_among(tuple(fields), self._names)


class _Memory:
    """What the last request of a connection showed, and whom that named.

    Args:
        peer: The connection.
        fields: Its fields.
        sent: Those of them that may be credentials.
        data: What a frame carried instead.
        rules: What named the client.
        identity: The client.

    Attributes:
        hidden: The headers that nothing behind the authenticator sees of the connection.
    """

    __slots__ = ("data", "expires", "fields", "hidden", "identity", "rules", "sent")

    def __init__(
        self,
        peer: Peer,
        fields: Fields,
        sent: Sent,
        data: str,
        rules: AccessRules,
        identity: Identity,
    ) -> None:
        self.hidden = rules.hidden(peer)
        self.fields = fields
        self.sent = sent
        self.data = data
        self.rules = rules
        self.identity = identity
        self.expires = float("inf") if identity.expires is None else identity.expires


class ListenerAuthenticator:
    """Names the clients of one listener.

    Args:
        listener: Its name.
        mode: Whether clients need a credential.
        rules: Decide who calls.
        on_failure: Called for each refusal.
        now: Seconds since 1970.

    Attributes:
        mode: Whether clients need a credential; a reload may change it.
        rules: What decides who calls; replaced when that changes.
    """

    def __init__(
        self,
        listener: str,
        mode: Mode,
        rules: AccessRules,
        on_failure: OnFailure,
        now: Callable[[], float] = time.time,  # noqa: TID251  # credentials have calendar times
    ) -> None:
        self.mode: Mode = mode
        self.rules = rules
        self._listener = listener
        self._on_failure = on_failure
        self._now = now

    def authenticate(self, credentials: Credentials, /) -> Identity | Awaitable[Identity]:
        """Return the client of a request. Raises Unauthenticated, Overloaded, Unavailable."""
        if self.mode == "off":
            return ANONYMOUS
        fields, rules = credentials.fields, self.rules
        last = credentials.peer.data
        # Equal credentials of a connection name the same client: its certificate, user and address
        # do not change.  A change of keys, key sets or clients brings other rules.
        is_current = (
            last is not None
            and last.rules is rules
            and last.data == credentials.data
            and self._now() < last.expires
        )
        # Transports give equal heads of a connection as the same object.
        if is_current and last.fields is fields:
            return last.identity  # type: ignore[no-any-return]  # a peer keeps anything
        sent = rules.sent(fields)
        if is_current and last.sent == sent:
            last.fields = fields
            return last.identity  # type: ignore[no-any-return]  # a peer keeps anything
        try:
            identity = self._identity(credentials, sent, rules)
            if identity is None and rules.other is not None:
                # It may read what was not compared, so its reply holds for this request alone.
                found = rules.other.authenticate(credentials)
                return found if isinstance(found, Identity) else self._later(credentials, found)
            identity = identity or self._unnamed(credentials, rules)
        except GatewayError as error:
            if credentials.is_public and rules.public_health:
                return ANONYMOUS
            self._report(error)
            raise
        if not credentials.is_public:  # the next request may need a credential
            peer = credentials.peer
            peer.data = _Memory(peer, fields, sent, credentials.data, rules, identity)
        return identity

    def hidden(self, peer: Peer) -> frozenset[str]:
        """Return the headers that nothing behind it sees of a peer: credentials."""
        if self.mode == "off":
            return frozenset()
        last = peer.data
        if last is not None and last.rules is self.rules:
            return last.hidden  # type: ignore[no-any-return]  # a peer keeps anything
        return self.rules.hidden(peer)

    async def _later(self, credentials: Credentials, found: Awaitable[Identity]) -> Identity:
        try:
            return await found
        except GatewayError as error:
            if credentials.is_public and self.rules.public_health:
                return ANONYMOUS
            self._report(error)
            raise

    def _report(self, error: GatewayError) -> None:
        kind, reason = "none", "missing"
        if isinstance(error, InvalidCredential):
            kind, reason = error.kind, error.reason
        elif not isinstance(error, Unauthenticated):
            kind, reason = "jwt", error.code.value
        self._on_failure(self._listener, kind, reason)

    def _identity(
        self, credentials: Credentials, sent: Sent, rules: AccessRules
    ) -> Identity | None:
        peer = credentials.peer
        # All of them are asked, because each credential must be right.
        found = self._keys_and_tokens(credentials, sent, rules)
        if rules.proxies:
            other = self._proxied(peer, sent, rules)
            found = found or other
        if peer.names:
            other = self._certificate(peer, rules)
            found = found or other
        if peer.user_id is not None:
            other = self._unix_user(peer, rules)
            found = found or other
        return found

    def _unnamed(self, credentials: Credentials, rules: AccessRules) -> Identity:
        """Return the client of a request without a credential. Raises Unauthenticated."""
        if self.mode == "optional" or (credentials.is_public and rules.public_health):
            return ANONYMOUS
        if credentials.peer.names:
            raise InvalidCredential(
                f"the certificate names no client: expected {_expected(rules)}",
                "certificate",
                "unknown",
                _shown(credentials.peer.names[0]),
            )
        raise Unauthenticated(f"a credential is missing: expected {_expected(rules)}")

    def _keys_and_tokens(
        self, credentials: Credentials, sent: Sent, rules: AccessRules
    ) -> Identity | None:
        key = token = None
        for value, is_header in _values(sent, credentials.data, rules):
            if not is_header and rules.tokens is not None and value.count(".") == 2:  # noqa: PLR2004
                found = rules.tokens.identity(value, credentials.peer.address, rules.clients)
                token = token or found
            else:
                found = self._of_key(value, rules)
                key = key or found
        # A server may read another one of them than the gateway.
        if sum(name == _AUTHORIZATION for name, _ in sent) > 1:
            raise InvalidCredential(
                "the request has several 'authorization' fields; expected one", "key", "repeated"
            )
        return key or token

    def _of_key(self, value: str, rules: AccessRules) -> Identity:
        identity = rules.key_identities.get(value)
        if identity is None or (identity.expires is not None and self._now() >= identity.expires):
            entry = None if rules.keys is None else rules.keys.find(value)
            if entry is None:
                raise InvalidCredential("the API key is unknown", "key", "unknown")
            identity = rules.key_identities[value] = self._of_entry(entry, rules)
        return identity

    def _of_entry(self, entry: ApiKey, rules: AccessRules) -> Identity:
        state = entry.state(datetime.fromtimestamp(self._now(), UTC))
        if state != "active":
            raise InvalidCredential(f"the API key is {state}", "key", state, entry.id)
        expires = entry.expires.timestamp() if entry.expires is not None else None
        if entry.revoked is not None:  # at a time to come
            revoked = entry.revoked.timestamp()
            expires = revoked if expires is None else min(expires, revoked)
        return _enabled(rules.clients, "key", entry.client, credential=entry.id, expires=expires)

    def _proxied(self, peer: Peer, sent: Sent, rules: AccessRules) -> Identity | None:
        for proxy in rules.proxies:
            config = proxy.config
            if not proxy.is_peer(peer):
                continue
            names = [value.strip() for name, value in sent if name == config.client_header]
            # Of two fields one may be the client's own, even if the other one is empty.
            if len(names) > 1:
                raise InvalidCredential(
                    f"the proxy sent {len(names)} names of the client; expected one",
                    "proxy",
                    "repeated",
                )
            if all(map(is_blank, names)):
                continue
            client = rules.clients.proxied.client(names[0])
            if client is None and config.unlisted == "accept":
                client = f"{config.name}:{names[0]}"
            if client is None:
                error = InvalidCredential(
                    "the client that the proxy names is unknown", "proxy", "unknown", config.name
                )
                error.shown = {"subject": _shown(names[0])}
                raise error
            groups = tuple(value for name, value in sent if name == config.groups_header)
            key = config.name, client, groups
            found = rules.proxied.get(key)
            if found is None:
                parts = (part.strip() for text in groups for part in text.split(","))
                found = rules.proxied[key] = _enabled(
                    rules.clients,
                    "proxy",
                    client,
                    groups=names_in(parts),
                    credential=config.name,
                )
            return found
        return None

    def _certificate(self, peer: Peer, rules: AccessRules) -> Identity | None:
        if not peer.names:
            return None
        for name in peer.names:
            client = rules.clients.certificates.client(name)
            if client is not None:
                return _enabled(rules.clients, "certificate", client, credential=_shown(name))
        if not rules.unlisted_certificates:
            return None
        name = peer.names[0]
        _, _, bare = name.partition(":")
        shown = bare if name.startswith(("dns:", "cn:")) else name
        return _enabled(rules.clients, "certificate", f"cert:{shown}", credential=_shown(name))

    def _unix_user(self, peer: Peer, rules: AccessRules) -> Identity | None:
        client = None if peer.user_id is None else rules.clients.unix_user(peer.user_id)
        if client is None:
            return None
        return _enabled(rules.clients, "unix", client, credential=f"uid {peer.user_id}")


def _shown(name: str) -> str:
    """Return the name in a credential as the log shows it."""
    return visible(name, _MAX_SHOWN)


def _enabled(clients: Clients, kind: str, name: str, **facts: Any) -> Identity:
    """Return the identity of a client, unless it is disabled. Raises InvalidCredential."""
    try:
        return clients.identity(name, **facts)
    except DisabledClient as error:
        raise InvalidCredential(error.message, kind, "disabled", facts["credential"]) from None


def _values(sent: Sent, data: str, rules: AccessRules) -> Iterator[tuple[str, bool]]:
    """Yield the keys and tokens of a request, and whether each is in the header of keys."""
    if rules.keys is None and rules.tokens is None:
        return
    for name, value in sent:
        if name == _AUTHORIZATION:
            scheme, _, rest = value.strip().partition(" ")
            if scheme.lower() == "bearer":
                yield rest.strip(), False
            elif scheme.lower() == "basic":
                yield _password(rest.strip()), False
        elif name == rules.key_header and rules.keys is not None:
            yield value.strip(), True
    if data:
        scheme, _, rest = data.strip().partition(" ")
        yield (rest.strip() if scheme.lower() == "bearer" and rest else data), False


def _password(encoded: str) -> str:
    """Return the password of `Basic`; "" if there is none. Source: RFC 7617 2."""
    try:
        decoded = b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
    return decoded.partition(":")[2]


def _expected(rules: AccessRules) -> str:
    """Return which credentials are accepted."""
    kinds = []
    if rules.keys is not None:
        kinds.append(f"an API key in {rules.key_header} or as a bearer token")
    if rules.tokens is not None:
        kinds.append("a token in authorization: Bearer")
    if rules.proxies:
        kinds.append("the name of a client, from a trusted proxy")
    if rules.clients.certificates or rules.unlisted_certificates:
        kinds.append("a client certificate")
    return " or ".join(kinds) or "one that the configuration names"
