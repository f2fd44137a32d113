"""Who may read, change and see payloads over the admin port: one rule for all its routes."""

import base64
import binascii
import ipaddress
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.admin.tokens import AdminTokens, tokens_of
from gateway.api.admin import AdminNeed
from gateway.config.admin import AdminConfig
from gateway.transports.net.look_up import is_address
from gateway.wire.http import Headers, HttpRequest

ADMIN_HEADER: Final = "x-gateway-admin"
"""A header that no page of another site can send without the consent of the gateway."""

_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOCAL_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


PROBES: Final = "probes"
"""The group of the routes that orchestrators and load balancers ask."""
VERDICT: Final = "verdict"
"""The group of verdicts, which controllers in a cluster read without credentials."""

# Groups whose requests are not checked where they are open: load balancers and scrapers send any
# host and no token.
_UNCHECKED: Final = frozenset({PROBES, "metrics", "status"})
_REDIRECTS: Final = "redirects"
_OPEN: Final = (*_UNCHECKED, VERDICT)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused.

    Attributes:
        status: 401 where a token would help, else 403.
    """

    status: int
    reason: str


class AdminAccess:
    """Decides about the requests to the admin port.

    Args:
        token: Off loopback it is needed; None for none.
        hosts: Names of the gateway besides its addresses and `localhost`.
        remote_changes: Whether commands of other machines need no token.
    """

    def __init__(
        self, token: str | None = None, hosts: Iterable[str] = (), *, remote_changes: bool = False
    ) -> None:
        config = AdminConfig(token=token, hosts=tuple(hosts), remote_changes=remote_changes)
        self.change(config, tokens_of(config, Path()))

    def change(self, config: AdminConfig, tokens: AdminTokens) -> None:
        """Decide by the rules of a configuration from now on."""
        self._tokens = tokens
        hosts = (*config.hosts, *_host_of(config))
        self._hosts = _LOCAL_NAMES.union(host.lower().rstrip(".") for host in hosts)
        self._is_unix = config.address is not None and config.address.tcp is None
        self._has_roles = config.has_roles
        self._open = frozenset(config.open if config.has_roles else _OPEN)
        self._local = frozenset(AdminNeed(role) for role in config.local)
        self._remote = _remote_roles(config)

    async def renew(self) -> None:
        """Read the files of tokens again that may have changed."""
        await self._tokens.renew()

    def is_unchecked(self, opened: str) -> bool:
        """Return whether everybody may ask for the routes of a group."""
        return opened == _REDIRECTS or (opened in _UNCHECKED and opened in self._open)

    def refusal(self, wire: HttpRequest, need: AdminNeed, opened: str = "") -> Refusal | None:
        """Return why *wire* is refused; None if it is allowed.

        A request needs a host that is an address, `localhost` or a configured name: a page of
        another site that resolves its own name to this machine has another one. A token that is
        sent must be right and have the role; without one, a request has the roles of its machine.
        MIGRATE also needs the header `x-gateway-admin` and no foreign origin. OPERATE needs no
        header, as nothing that a browser sends is accepted.

        Args:
            wire: The request.
            need: What the route of the request asks of its caller.
            opened: The group by which everybody may ask; "" for none.
        """
        if self.is_unchecked(opened):
            return None
        if need is AdminNeed.OPERATE:
            return _origin_refusal(wire.headers) or self._role_refusal(wire, need, opened)
        return (
            self._host_refusal(wire.headers)
            or (_page_refusal(wire.headers) if need is AdminNeed.MIGRATE else None)
            or self._role_refusal(wire, need, opened)
        )

    def caller(self, wire: HttpRequest) -> str | None:
        """Return the name of a request's token, or `local`; None if it has no right one."""
        sent = _sent_token(wire.headers)
        if sent is None:
            return "local" if self._is_local(wire) else None
        token = self._tokens.find(sent)
        return None if token is None else token.name

    def _host_refusal(self, headers: Headers) -> Refusal | None:
        host = headers.get("host") or ""
        name = _host_name(host)
        if name in self._hosts or is_address(name):
            return None
        return Refusal(
            403,
            f"host is {host!r}: not a name of this gateway; expected an IP address, localhost, or "
            "a name of admin: {hosts: [...]}",
        )

    def _role_refusal(self, wire: HttpRequest, need: AdminNeed, opened: str) -> Refusal | None:
        sent = _sent_token(wire.headers)
        if sent is not None:
            token = self._tokens.find(sent)
            if token is None:
                return Refusal(401, _WRONG_TOKEN)
            return (
                None
                if _allows(token.roles, need)
                else Refusal(403, _role_reason("the token", need))
            )
        if opened == VERDICT and opened in self._open:
            return None
        is_local = self._is_local(wire)
        if _allows(self._local if is_local else self._remote, need):
            return None
        if is_local and (self._local or not self._tokens):
            return Refusal(403, _role_reason("a request of this machine without a token", need))
        return self._missing_token(wire, need)

    def _is_local(self, wire: HttpRequest) -> bool:
        """Return whether a program of this machine sent a request, and no proxy passed it on."""
        if any(wire.headers.get(name) is not None for name in _FORWARDED):
            return False
        if not wire.client.address:
            # A client of TCP that has left has no address either, and no client of a unix socket.
            return self._is_unix
        try:
            parsed = ipaddress.ip_address(wire.client.address)
        except ValueError:
            return False
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        return (mapped or parsed).is_loopback

    def _missing_token(self, wire: HttpRequest, need: AdminNeed) -> Refusal:
        address = wire.client.address
        if need is AdminNeed.OPERATE and not self._has_roles:
            return Refusal(
                403,
                f"requests from {address} cannot change the gateway; expected one from this "
                "machine, or a token (admin: {token: ...})",
            )
        if self._tokens:
            return Refusal(401, "token is missing; expected the header 'authorization: Bearer ...'")
        return Refusal(
            403,
            f"requests from {address or 'other machines'} need a token, and none is configured; "
            "expected one from this machine (admin: {token: ${file:...}})",
        )


_WRONG_TOKEN: Final = "the token is wrong; expected one of admin: {token, tokens}"  # noqa: S105


def access_of(config: AdminConfig, directory: Path = Path()) -> AdminAccess:
    """Return the rules of a configuration, whose folder is *directory*."""
    access = AdminAccess()
    access.change(config, tokens_of(config, directory))
    return access


def _remote_roles(config: AdminConfig) -> frozenset[AdminNeed]:
    """Return the roles of other machines without a token."""
    roles = {AdminNeed.OPERATE} if config.remote_changes else set()
    if config.token is None and not config.has_roles:
        roles.add(AdminNeed.READ)
    return frozenset(roles)


def _allows(roles: Collection[AdminNeed], need: AdminNeed) -> bool:
    """Return whether one of *roles* is enough: each other role includes READ."""
    return need in roles or (need is AdminNeed.READ and bool(roles))


def _role_reason(subject: str, need: AdminNeed) -> str:
    return f"{subject} lacks the role {need.value!r} (admin.tokens, admin.local)"


def _host_of(config: AdminConfig) -> tuple[str, ...]:
    """Return the host of the address; none where it is every address, or a unix socket."""
    tcp = None if config.address is None else config.address.tcp
    return (tcp.host,) if tcp is not None and tcp.host else ()


def _origin_refusal(headers: Headers) -> Refusal | None:
    if headers.get("origin") is None:
        return None
    # A browser sends this header: a page of another site must not change the gateway.
    return Refusal(403, "requests of web pages are refused: header 'origin' found")


def _page_refusal(headers: Headers) -> Refusal | None:
    """Refuse what a page of another site sends, or may send."""
    if headers.get(ADMIN_HEADER) is None:
        return Refusal(403, f"header {ADMIN_HEADER!r} is missing; expected any value")
    origin = headers.get("origin")
    if origin is not None and _authority(origin) != (headers.get("host") or "").lower():
        return Refusal(403, f"origin is {origin!r}: another site; expected the gateway's own page")
    site = headers.get("sec-fetch-site")
    if site not in {None, "same-origin", "none"}:
        return Refusal(403, f"sec-fetch-site is {site!r}; expected 'same-origin'")
    return None


def _authority(origin: str) -> str:
    """Return host and port of an `origin` header; "null" if it has none."""
    try:
        return urlsplit(origin).netloc.lower() or "null"
    except ValueError:  # half of an IPv6 address
        return "null"


def _sent_token(headers: Headers) -> str | None:
    """Return the token of a request, from `Bearer` or as the password of `Basic`."""
    value = headers.get("authorization")
    if value is None:
        return None
    scheme, _, credentials = value.strip().partition(" ")
    if scheme.lower() != "basic":
        return credentials.strip()
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _host_name(host: str) -> str:
    """Return the name of a `host` header, without the port and without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")
