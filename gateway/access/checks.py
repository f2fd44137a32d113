"""Errors of the configuration about clients and their credentials."""

from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from gateway import registry
from gateway.config.models import Config
from gateway.config.yaml_tree import Finding, KeyPath, path_text
from gateway.ir.identity import ANONYMOUS
from gateway.settings.units import is_url
from gateway.telemetry.access_metrics import OTHER


def check_access(config: Config) -> Iterator[Finding]:
    """Yield what is wrong with clients and credentials."""
    for name, what in _RESERVED.items():
        if name in config.clients:
            yield ("clients", name), f"the name is reserved for {what}"
    yield from _check_sources(config)
    names = [each.name for each in config.security.jwt]
    for name, client in config.clients.items():
        for issuer in client.subjects:
            if issuer not in names:
                known = ", ".join(names) or "none"
                message = f"unknown issuer {issuer!r}: security.jwt defines {known}"
                yield ("clients", name, "subjects", issuer), message
    yield from _check_issuers(config)
    if config.security.authenticator is not None:
        try:
            registry.authenticator(config.security.authenticator)
        except LookupError as error:
            yield ("security", "authenticator"), str(error)
    yield from _check_binary_names(config)
    keys = config.security.keys
    if keys is not None and keys.header == "authorization":
        message = "keys are read from 'authorization: Bearer' anyway; expected another header"
        yield ("security", "keys", "header"), message


_RESERVED: Final = {
    ANONYMOUS.name: "clients without a credential",
    OTHER: "the clients that have no label of their own in metrics",
}


def _check_sources(config: Config) -> Iterator[Finding]:
    """Yield the names of issuers and proxies that begin the names of other clients, too."""
    used = {"cert": "certificates"}
    for key in ("jwt", "proxies"):
        for index, each in enumerate(getattr(config.security, key)):
            at = ("security", key, index, "name")
            other = used.get(each.name)
            if other is not None:
                message = (
                    f"the name {each.name!r} is that of {other}, too: clients that are not listed "
                    f"would be called {each.name}:... by both; expected another name"
                )
                yield at, message
            used.setdefault(each.name, path_text(at[:-1]))


def _check_binary_names(config: Config) -> Iterator[Finding]:
    """Yield the headers of credentials that are bytes over gRPC, which nobody would read."""
    security = config.security
    headers: list[tuple[KeyPath, str | None]] = []
    if security.keys is not None:
        headers.append((("security", "keys", "header"), security.keys.header))
    for index, proxy in enumerate(security.proxies):
        path: KeyPath = ("security", "proxies", index)
        headers.append(((*path, "client_header"), proxy.client_header))
        headers.append(((*path, "groups_header"), proxy.groups_header))
    for at, name in headers:
        if name is not None and name.endswith("-bin"):
            yield at, f"gRPC has bytes in {name!r}; expected a name that does not end with '-bin'"


def _check_issuers(config: Config) -> Iterator[Finding]:
    for index, issuer in enumerate(config.security.jwt):
        at = ("security", "jwt", index)
        if find_spec("jwt") is None or find_spec("cryptography") is None:
            yield at, "tokens need PyJWT: pip install 'tensor-gateway[jwt]'"
        if not is_url(issuer.jwks):
            continue
        host = _host(issuer.jwks)
        if not host:
            yield (*at, "jwks"), f"{issuer.jwks!r} is no URL; expected https://HOST/PATH"
        elif issuer.jwks.startswith("http:") and not _is_loopback(host):
            message = (
                "keys that are fetched without TLS can be replaced by others; expected an https "
                "URL, or an http URL of this machine"
            )
            yield (*at, "jwks"), message


def _host(url: str) -> str:
    """Return the host of a URL; "" if it is no URL."""
    try:
        parts = urlsplit(url)
        is_valid = parts.port != 0
    except ValueError:
        return ""
    return parts.hostname or "" if is_valid else ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
