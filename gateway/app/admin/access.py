"""Who may read, change and see payloads over the admin port: one rule for all its routes."""

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from gateway.api.admin import AdminNeed
from gateway.config.models import AdminConfig
from gateway.wire.http import Headers, HttpRequest

ADMIN_HEADER: Final = "x-gateway-admin"
"""A header that no page of another site can send without the consent of the gateway."""

_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOCAL_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


VERDICT: Final = "verdict"
"""The group of verdicts, which controllers in a cluster read without credentials."""

# Groups whose requests are not checked: load balancers and scrapers send any host and no token.
_UNCHECKED: Final = frozenset({"probes", "metrics", "status", "redirects"})


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
        self.change(token, hosts, remote_changes=remote_changes)

    def change(
        self, token: str | None, hosts: Iterable[str] = (), *, remote_changes: bool = False
    ) -> None:
        """Decide by other rules from now on; the arguments are those of the class."""
        self._digest = None if token is None else _digest(token)
        self._hosts = _LOCAL_NAMES.union(host.lower().rstrip(".") for host in hosts)
        self._remote_changes = remote_changes

    def refusal(self, wire: HttpRequest, need: AdminNeed, opened: str = "") -> Refusal | None:
        """Return why *wire* is refused; None if it is allowed.

        A request needs a host that is an address, `localhost` or a configured name: a page of
        another site that resolves its own name to this machine has another one. A token that is
        sent must be the right one, and off loopback it is needed. MIGRATE also needs the header
        `x-gateway-admin` and no foreign origin. OPERATE needs no header, as nothing that a browser
        sends is accepted.

        Args:
            wire: The request.
            need: What the route of the request asks of its caller.
            opened: The group by which everybody may ask; "" for none.
        """
        if opened in _UNCHECKED:
            return None
        if need is AdminNeed.OPERATE:
            return self._command_refusal(wire)
        return (
            self._host_refusal(wire.headers)
            or (_page_refusal(wire.headers) if need is AdminNeed.MIGRATE else None)
            or self._token_refusal(wire, need, opened)
        )

    def _command_refusal(self, wire: HttpRequest) -> Refusal | None:
        if wire.headers.get("origin") is not None:
            # A browser sends this header: a page of another site must not change the gateway.
            return Refusal(403, "requests of web pages are refused: header 'origin' found")
        sent = _sent_token(wire.headers)
        if sent is not None and not self._is_right(sent):
            return Refusal(403, _WRONG_TOKEN)
        if self._remote_changes or sent is not None or _is_local(wire):
            return None
        return Refusal(
            403,
            f"requests from {wire.client.address} cannot change the gateway; expected one from "
            "this machine, or a token (admin: {token: ...})",
        )

    def _host_refusal(self, headers: Headers) -> Refusal | None:
        host = headers.get("host") or ""
        name = _host_name(host)
        if name in self._hosts or _is_address(name):
            return None
        return Refusal(
            403,
            f"host is {host!r}: not a name of this gateway; expected an IP address, localhost, or "
            "a name of admin: {hosts: [...]}",
        )

    def _token_refusal(self, wire: HttpRequest, need: AdminNeed, opened: str) -> Refusal | None:
        sent = _sent_token(wire.headers)
        if sent is not None:
            return None if self._is_right(sent) else Refusal(401, _WRONG_TOKEN)
        if opened == VERDICT or _is_local(wire):
            return None
        if self._digest is not None:
            return Refusal(401, "token is missing; expected the header 'authorization: Bearer ...'")
        if need is AdminNeed.READ:
            return None
        return Refusal(
            403,
            f"requests from {wire.client.address or 'other machines'} need a token, and none is "
            "configured; expected one from this machine (admin: {token: ${file:...}})",
        )

    def _is_right(self, sent: str) -> bool:
        return self._digest is not None and hmac.compare_digest(self._digest, _digest(sent))


_WRONG_TOKEN: Final = "the token is wrong; expected the one of admin: {token: ...}"  # noqa: S105


def access_of(config: AdminConfig) -> AdminAccess:
    """Return the rules of a configuration."""
    access = AdminAccess()
    change_access(access, config)
    return access


def change_access(access: AdminAccess, config: AdminConfig) -> None:
    """Let *access* decide by the rules of a configuration."""
    hosts = (*config.hosts, *_host_of(config))
    access.change(config.token, hosts, remote_changes=config.remote_changes)


def _host_of(config: AdminConfig) -> tuple[str, ...]:
    """Return the host of the address; none where it is every address."""
    return (config.address.host,) if config.address is not None and config.address.host else ()


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


def _digest(token: str) -> bytes:
    """Return a digest of one length: the comparison then tells nothing about the token's."""
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def _host_name(host: str) -> str:
    """Return the name of a `host` header, without the port and without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_local(wire: HttpRequest) -> bool:
    """Return whether a program of this machine sent a request, and no proxy passed it on."""
    if any(wire.headers.get(name) is not None for name in _FORWARDED):
        return False
    try:
        parsed = ipaddress.ip_address(wire.client.address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
