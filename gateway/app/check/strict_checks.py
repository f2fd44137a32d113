"""What `security.strict` forbids beside the risks of listeners, which `exposure.py` has.

Credentials that nobody asks for, an open admin port, files of secrets that other users of this
machine read, and servers whose certificates nobody verifies.
"""

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.admin import AdminConfig
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import Finding, KeyPath

_FILE: Final = re.compile(r"\$\{file:([^}]*)\}")
_OF_SECRETS: Final = frozenset({("admin",), ("upstreams",), ("events",)})
"""Sections of the file whose values may come from files of secrets."""
_FORBIDS: Final = "which security.strict forbids"


def strict_findings(loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield what is not allowed, each with its key; nothing without `security.strict`."""
    config = loaded.config
    if not config.security.strict:
        return
    for index, listener in enumerate(config.listeners):
        yield from _check_authentication(("listeners", index), listener, config)
        if listener.transport == "reference" and listener.grpc is not None:
            message = (
                "one client can end the calls of all others over gRPC with 'transport: reference', "
                f"{_FORBIDS}; use 'transport: native'"
            )
            yield ("listeners", index, "transport"), message
    if config.admin is not None:
        yield from _check_admin(config.admin)
    for at, tls in _tls_to_servers(config):
        if tls is not None and not tls.verify:
            message = f"the server is not verified, {_FORBIDS}; expected 'verify: true' with 'ca'"
            yield (*at, "verify"), message
    for path, name in _secret_files(loaded):
        yield from _check_mode(path, loaded.directory / Path(name).expanduser())


def _check_authentication(
    at: KeyPath, listener: ListenerConfig, config: Config
) -> Iterator[Finding]:
    is_remote = any(not address.is_loopback for _, address in listener.addresses())
    if not is_remote or config.authentication_of(listener) != "off":
        return
    # Without TLS there is that to mend first: others would read the credentials.
    if listener.authentication is None and (listener.tls is None or _is_mutual(listener.tls)):
        return
    message = (
        f"listener {listener.name!r} asks other machines for no credential, {_FORBIDS}; expected "
        "'required' or 'optional', with credentials in 'security', or an address of this machine"
    )
    yield (*at, "authentication"), message


def _is_mutual(tls: TlsConfig) -> bool:
    return tls.ca is not None and tls.client_certificates == "required"


def _check_admin(admin: AdminConfig) -> Iterator[Finding]:
    missing = [
        key
        for key, is_there in (
            ("tls", admin.tls is not None),
            ("tokens", admin.token is not None or bool(admin.tokens)),
        )
        if not is_there
    ]
    for key, address in (("address", admin.address), ("metrics", admin.metrics)):
        if missing and address is not None and not address.is_loopback:
            message = (
                f"other machines reach {address} without {' and '.join(missing)}, {_FORBIDS}; add "
                f"{' and '.join(repr(each) for each in missing)}, or listen on 127.0.0.1"
            )
            yield ("admin", key), message


def _tls_to_servers(config: Config) -> Iterator[tuple[KeyPath, TlsConfig | None]]:
    for name, upstream in config.upstreams.items():
        yield ("upstreams", name, "tls"), upstream.tls
    for index, issuer in enumerate(config.security.jwt):
        yield ("security", "jwt", index, "tls"), issuer.tls
    if config.security.external is not None:
        yield ("security", "external", "tls"), config.security.external.tls


def _secret_files(loaded: LoadedConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield the files of private keys, of keys of clients and of tokens, each with its key."""
    config = loaded.config
    for at, tls in (*_tls_of_servers(config), *_tls_to_servers(config)):
        for path, name in () if tls is None else tls.files():
            if path[-1] == "key":
                yield (*at, *path), name
    for index, token in enumerate(() if config.admin is None else config.admin.tokens):
        if token.file is not None:
            yield ("admin", "tokens", index, "file"), token.file
    if config.security.keys is not None:
        yield ("security", "keys", "file"), config.security.keys.file
    for path, text in loaded.references():
        names = _FILE.findall(text) if path[:1] in _OF_SECRETS else []
        yield from ((path, name) for name in names)


def _tls_of_servers(config: Config) -> Iterator[tuple[KeyPath, TlsConfig | None]]:
    for index, listener in enumerate(config.listeners):
        yield ("listeners", index, "tls"), listener.tls
    if config.admin is not None:
        yield ("admin", "tls"), config.admin.tls


def _check_mode(path: KeyPath, file: Path) -> Iterator[Finding]:
    try:
        mode = file.stat().st_mode
    except OSError:  # an error of its own, where the file is read
        return
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        message = (
            f"{file.name} has the mode {stat.S_IMODE(mode):04o}, so that others read it, "
            f"{_FORBIDS}; expected 0600 or 0640"
        )
        yield path, message
