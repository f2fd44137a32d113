"""Errors of the configuration about clients and their credentials."""

from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway import registry
from gateway.access.authenticator import Mode
from gateway.config.models import Config, ListenerConfig, UpstreamConfig
from gateway.config.yaml_tree import Finding
from gateway.policies.forward_headers import FORWARD_HEADERS


def mode_of(listener: ListenerConfig, config: Config) -> Mode:
    """Return whether the clients of a listener need a credential."""
    if listener.authentication is not None:
        return listener.authentication
    security = config.security
    has_kinds = security.keys or security.jwt or security.certificates or security.proxies
    has_clients = any(each.certificates or each.unix_users for each in config.clients.values())
    is_asked = has_kinds or has_clients or security.authenticator
    return "required" if is_asked else "off"


def is_url(jwks: str) -> bool:
    """Return whether a key set is fetched; otherwise it is a file."""
    return jwks.startswith(("https://", "http://"))


def gets_authorization(upstream: UpstreamConfig) -> bool:
    """Return whether an upstream gets the header `authorization` of clients that have a name."""
    return any(name.lower() == "authorization" for name in FORWARD_HEADERS.of(upstream))


def check_access(config: Config) -> Iterator[Finding]:
    """Yield what is wrong with clients and credentials."""
    if "anonymous" in config.clients:
        yield ("clients", "anonymous"), "the name is reserved for clients without a credential"
    names = [each.name for each in config.security.jwt]
    for name, client in config.clients.items():
        for issuer in client.subjects:
            if issuer not in names:
                known = ", ".join(names) or "none"
                message = f"unknown issuer {issuer!r}: security.jwt defines {known}"
                yield ("clients", name, "subjects", issuer), message
    yield from _check_issuers(config, names)
    proxies = [each.name for each in config.security.proxies]
    for index, proxy in enumerate(config.security.proxies):
        if proxies.index(proxy.name) < index:
            yield ("security", "proxies", index, "name"), f"duplicate name {proxy.name!r}"
    if config.security.authenticator is not None:
        try:
            registry.authenticator(config.security.authenticator)
        except LookupError as error:
            yield ("security", "authenticator"), str(error)
    keys = config.security.keys
    if keys is not None and keys.header == "authorization":
        message = "keys are read from 'authorization: Bearer' anyway; expected another header"
        yield ("security", "keys", "header"), message


def _check_issuers(config: Config, names: list[str]) -> Iterator[Finding]:
    for index, issuer in enumerate(config.security.jwt):
        at = ("security", "jwt", index)
        if find_spec("jwt") is None or find_spec("cryptography") is None:
            yield at, "tokens need PyJWT: pip install 'tensor-gateway[jwt]'"
        if names.index(issuer.name) < index:
            yield (*at, "name"), f"duplicate name {issuer.name!r}"
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
