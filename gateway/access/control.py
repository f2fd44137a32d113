"""Who may call the listeners of a process: built from the configuration, and kept up to date.

The files of credentials are compared every second, by content. `checks` has the errors of the
configuration.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog
from msgspec import structs
from prometheus_client.core import Metric

from gateway import registry
from gateway.access.authenticator import AccessRules, ListenerAuthenticator, Mode, Proxy
from gateway.access.clients import Clients
from gateway.access.external import ExternalAccess
from gateway.access.key_file import KeyFile, read_key_file
from gateway.access.key_sets import (
    FETCH_TIMEOUT_S,
    MAX_BYTES,
    FetchedKeySet,
    KeySet,
    KeySetError,
    VerifyKey,
    read_key_set,
)
from gateway.access.tokens import CheckBudget, Issuer, JwtReader
from gateway.api.access import Authenticator, Credentials, Gatekeeper
from gateway.api.start_error import StartError
from gateway.concurrency.background import start_background
from gateway.concurrency.polling import Polling
from gateway.config.access import JwtConfig
from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.config.tls import client_tls
from gateway.ir.errors import GatewayError, Unauthenticated
from gateway.ir.identity import Identity
from gateway.ir.limits import is_blank, names_in
from gateway.policies.forward_headers import forwards_authorization
from gateway.settings.config_view import ConfigView
from gateway.settings.units import is_url
from gateway.telemetry import names
from gateway.telemetry.families import counter_family
from gateway.telemetry.faults import FAULTS, internal_error
from gateway.telemetry.reload_metrics import APPLIED, FAILED
from gateway.transports.http1.fetch import fetch
from gateway.transports.net.tls_files import TlsFiles

log = structlog.get_logger(__name__)

V = TypeVar("V")

_OK: Final = 200


class AccessControl(Gatekeeper):
    """What names the clients of all listeners of a process.

    Args:
        loaded: The configuration.

    Attributes:
        external: The program that decides about calls.

    Raises:
        StartError: A file of credentials cannot be used.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._reloads: Counter[tuple[str, str]] = Counter()
        self._problems: dict[str, str] = {}
        self._has_read = False
        self._listeners: dict[str, ListenerAuthenticator] = {}
        self._polling = Polling(self.look)
        self._loaded = loaded
        self.external = ExternalAccess()
        self._sources = _Sources(loaded, None, self)
        self._rules = self._sources.rules()

    def authenticator(self, listener: str, /) -> ListenerAuthenticator | None:
        """Add a listener, and return what names its clients; None if nobody asks."""
        mode = _modes(self._loaded.config)[listener]
        found = ListenerAuthenticator(listener, mode, self._rules, self._count)
        self._listeners[listener] = found
        return None if found.mode == "off" else found

    def needs_client(self, listener: str, /) -> bool:
        """Return whether each request of a listener needs a credential."""
        found = self._listeners.get(listener)
        return found is not None and found.mode == "required"

    def key_header(self) -> str:
        """Return the header with an API key, in lower case."""
        return self._rules.key_header

    def prepare(self, config: ConfigView, /) -> Callable[[], dict[str, ListenerAuthenticator]]:
        """Read the files of another configuration; return what puts it in force.

        That returns the authenticators of the listeners that ask from then on.

        Raises:
            StartError: A file of credentials cannot be used.
        """
        loaded = LoadedConfig.of(config)
        return partial(self._change, loaded, _Sources(loaded, self._sources, self))

    def _change(self, loaded: LoadedConfig, sources: _Sources) -> dict[str, ListenerAuthenticator]:
        old, self._sources, self._loaded = self._sources, sources, loaded
        self._problems.clear()
        self.apply()
        if self._polling.is_running:
            old.stop_fetches(kept=sources)
            sources.start_fetches()
        for listener, mode in _modes(loaded.config).items():
            self._listeners[listener].mode = mode
        return {name: each for name, each in self._listeners.items() if each.mode != "off"}

    def status(self) -> list[dict[str, Any]]:
        """Return what is wrong with files of credentials, as warnings."""
        return [
            {"event": "credentials not reloaded", "level": "error", "file": file, "reason": reason}
            for file, reason in self._problems.items()
        ]

    def files(self) -> list[dict[str, Any]]:
        """Return the files of credentials, with the hash of what is in force of each."""
        return [
            {
                "key": each.key,
                "file": str(each.path.absolute()),
                "sha256": each.sha256,
                "reason": self._problems.get(each.name, ""),
            }
            for each in self._sources.files
        ]

    def obstacle(self) -> str:
        """Return that no key set of an issuer was read since the start; "" if all of them were.

        Once all of them were read the answer is "": an issuer that a reload adds, or that is away,
        costs its own clients and not the readiness of the gateway.
        """
        unread = "" if self._has_read else self._sources.unread_issuer()
        self._has_read = not unread
        return f"no key set of issuer {unread} was read yet" if unread else ""

    def tls_files(self) -> list[TlsFiles]:
        """Return the TLS files towards the servers of key sets, and the program that decides."""
        external = self.external.tls
        return [*([] if external is None else [external]), *self._sources.tls_files()]

    def start(self) -> None:
        """Begin to look at the files, and to fetch key sets."""
        self._polling.start()
        self._sources.start_fetches()

    async def stop(self) -> None:
        """End that. Harmless the second time."""
        await self._polling.stop()
        self._sources.stop_fetches()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        failures = counter_family(names.AUTHENTICATION_FAILURES)
        for labels, count in self._failures.items():
            failures.add_metric(labels, count)
        yield failures
        reloads = counter_family(names.ACCESS_RELOADS)
        for key, count in self._reloads.items():
            reloads.add_metric(key, count)
        yield reloads

    def apply(self) -> None:
        """Put what the files say now in force."""
        self._rules = self._sources.rules()
        for each in self._listeners.values():
            each.rules = self._rules

    def _count(self, listener: str, kind: str, reason: str) -> None:
        self._failures[listener, kind, reason] += 1

    # -- the files

    async def look(self) -> None:
        """Read the files that have changed, and use those that are correct."""
        sources = self._sources
        for file in sources.files:
            try:
                is_changed = await asyncio.to_thread(file.read)
            except (OSError, ValueError) as error:
                if sources is self._sources:
                    self.note(file.name, _fault_of(error))
                continue
            if sources is not self._sources:
                return
            self._problems.pop(file.name, None)
            if is_changed:
                self.note(file.name, "")
                file.use()

    def note(self, file: str, reason: str) -> None:
        """Count and log that a file was read again; *reason* says why it cannot be used.

        A failure is counted at each look, so that its alert holds as long as it lasts. It is logged
        once, and again when its reason changes.
        """
        if not reason:
            self._problems.pop(file, None)
            self._reloads[file, APPLIED] += 1
            log.info("credentials reloaded", file=file)
            return
        self._reloads[file, FAILED] += 1
        if self._problems.get(file) != reason:
            self._problems[file] = reason
            log.error("credentials not reloaded", file=file, reason=reason)


def _modes(config: Config) -> dict[str, Mode]:
    """Return whether the clients of each listener need a credential."""
    return {each.name: config.authentication_of(each) for each in config.listeners}


class _WatchedFile(Generic[V]):
    """A file of credentials, compared by content.

    Args:
        key: Of the configuration, for an error at the start.
        name: The path as the configuration has it.
        path: Where it is.
        parse: Reads its content; raises ValueError, without content of the file in its text.
        on_change: Called after `use`.

    Attributes:
        key: The key that names the file.
        name: The path as the configuration has it.
        path: Where it is.
        content: What is in force.
        sha256: The hash of the file that has this content.

    Raises:
        StartError: It cannot be used.
    """

    def __init__(
        self,
        key: str,
        name: str,
        path: Path,
        parse: Callable[[bytes], V],
        on_change: Callable[[V], object],
    ) -> None:
        self.key = key
        self.name = name
        self.path = path
        self._parse = parse
        self._on_change = on_change
        try:
            self._data = path.read_bytes()
            self.content = parse(self._data)
        except (OSError, ValueError) as error:
            raise StartError(f"{key}: {name}: {_fault_of(error)}") from error
        self._next = self.content
        self.sha256 = sha256(self._data).hexdigest()

    def read(self) -> bool:
        """Read it again; return whether it has other, correct content. Raises what is wrong."""
        data = self.path.read_bytes()
        if data == self._data:
            return False
        self._next = self._parse(data)
        self._data = data
        return True

    def use(self) -> None:
        """Put the content that was read last in force."""
        self.content = self._next
        self.sha256 = sha256(self._data).hexdigest()
        self._on_change(self.content)


def _fault_of(error: Exception) -> str:
    """Return why a file of credentials cannot be used, without its content."""
    return str(error.strerror) if isinstance(error, OSError) else str(error)


class _Sources:
    """The files and key sets of one configuration.

    Args:
        loaded: The configuration.
        before: Those of the configuration before, whose key sets are kept; None for none.
        control: Learns of changes.

    Raises:
        StartError: A file of credentials cannot be used.
    """

    def __init__(
        self, loaded: LoadedConfig, before: _Sources | None, control: AccessControl
    ) -> None:
        self._config = loaded.config
        self._control = control
        self.files: list[_WatchedFile[Any]] = []
        self._keys: _WatchedFile[KeyFile] | None = None
        security = loaded.config.security
        if security.keys is not None:
            self._keys = _WatchedFile(
                "security.keys.file",
                security.keys.file,
                loaded.directory / security.keys.file,
                read_key_file,
                lambda _keys: control.apply(),
            )
            self.files.append(self._keys)
        self._other = self._package(before)
        self._issuers = [self._issuer(each, loaded.directory, before) for each in security.jwt]
        self._tokens = self._reader(before)

    def rules(self) -> AccessRules:
        """Return what decides who calls."""
        security = self._config.security
        keys = security.keys
        return AccessRules(
            Clients(self._config.clients),
            keys=None if self._keys is None else self._keys.content,
            key_header="x-api-key" if keys is None else keys.header,
            tokens=self._tokens,
            proxies=tuple(
                Proxy(each, [ip_network(one, strict=False) for one in each.addresses])
                for each in security.proxies
            ),
            unlisted_certificates=(
                security.certificates is not None and security.certificates.unlisted == "accept"
            ),
            other=self._other,
            public_health=security.public_health,
            keeps_authorization=any(
                forwards_authorization(each) for each in self._config.upstreams.values()
            ),
        )

    def _package(self, before: _Sources | None) -> PackageAuthenticator | None:
        """Return the authenticator of a package; that of *before* if it has the same name."""
        name = self._config.security.authenticator
        if name is None:
            return None
        if before is not None and before._config.security.authenticator == name:  # noqa: SLF001
            return before._other  # noqa: SLF001  # of the same class
        try:
            return PackageAuthenticator(registry.authenticator(name), name)
        except LookupError as error:
            raise StartError(f"security.authenticator: {error}") from error

    def _reader(self, before: _Sources | None) -> JwtReader | None:
        """Return what verifies tokens; that of *before*, with its cache, if nothing differs."""
        security = self._config.security
        if not security.jwt:
            return None
        if before is not None:
            old = before._config.security  # noqa: SLF001  # of the same class
            if (old.jwt, old.token_checks) == (security.jwt, security.token_checks):
                return before._tokens  # noqa: SLF001
        calls, unit = security.token_checks.split("/")
        rate = int(calls) / (60 if unit == "min" else 1)
        return JwtReader([each.issuer for each in self._issuers], CheckBudget(rate))

    def _issuer(self, config: JwtConfig, directory: Path, before: _Sources | None) -> _IssuerSource:
        for each in () if before is None else before._issuers:  # noqa: SLF001
            if each.issuer.config == config:
                self.files += [] if each.file is None else [each.file]
                return each
        key_set = KeySet(self._control.apply)
        found = _IssuerSource(Issuer(config, key_set))
        if is_url(config.jwks):
            found.source = KeySetSource(config, directory)
            found.fetched = FetchedKeySet(
                config.name,
                key_set,
                found.source.fetch,
                refresh_s=config.refresh,
                stale_s=config.stale,
                on_outcome=lambda name, reason: self._control.note(f"jwks of {name}", reason),
            )
            return found
        file: _WatchedFile[tuple[VerifyKey, ...]] = _WatchedFile(
            f"jwks of issuer {config.name}",
            config.jwks,
            directory / config.jwks,
            read_key_set,
            key_set.replace,
        )
        key_set.keys = file.content
        found.file = file
        self.files.append(file)
        return found

    def tls_files(self) -> list[TlsFiles]:
        """Return the TLS files towards the servers of key sets."""
        sources = [each.source for each in self._issuers if each.source is not None]
        return [each.tls for each in sources if each.tls is not None]

    def unread_issuer(self) -> str:
        """Return the name of an issuer without a key set; "" for none."""
        unread = (each.issuer for each in self._issuers if each.issuer.key_set.keys is None)
        return next((each.config.name for each in unread), "")

    def start_fetches(self) -> None:
        """Begin to fetch key sets, unless that has begun."""
        for each in self._issuers:
            if each.fetched is not None and each.task is None:
                each.task = start_background(each.fetched.run(), "fetches of a key set")

    def stop_fetches(self, kept: _Sources | None = None) -> None:
        """End that, but for those that *kept* goes on with."""
        others = () if kept is None else kept._issuers  # noqa: SLF001  # of the same class
        for each in self._issuers:
            if each.task is not None and each not in others:
                each.task.cancel()
                each.task = None


class _IssuerSource:
    """Where the keys of an issuer come from.

    Args:
        issuer: The issuer.

    Attributes:
        issuer: The issuer.
        source: The server of its key set; None for a file.
        fetched: Fetches it again and again; None for a file.
        file: The file; None for a URL.
        task: Runs that.
    """

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.source: KeySetSource | None = None
        self.fetched: FetchedKeySet | None = None
        self.file: _WatchedFile[Any] | None = None
        self.task: asyncio.Task[None] | None = None


class KeySetSource:
    """Fetches the key set of an issuer.

    Args:
        config: The issuer.
        directory: TLS files are relative to it.

    Attributes:
        tls: Its TLS files; None where the system's authorities are used.

    Raises:
        OSError: A TLS file cannot be read.
        ValueError: A TLS file has invalid content.
    """

    def __init__(self, config: JwtConfig, directory: Path) -> None:
        self._url = config.jwks
        self.tls: TlsFiles | None = None
        if config.tls is not None:
            self.tls = TlsFiles(f"jwks {config.name}", client_tls(config.tls, directory))

    async def fetch(self) -> bytes:
        """Return the bytes of the key set. Raises GatewayError, OSError, KeySetError."""
        context = None if self.tls is None else self.tls.context()
        response = await fetch(
            self._url,
            accept="application/json",
            timeout_s=FETCH_TIMEOUT_S,
            max_bytes=MAX_BYTES,
            tls=context,
        )
        if response.status != _OK:
            raise KeySetError(f"the server replied with status {response.status}; expected 200")
        return bytes(response.view)


class PackageAuthenticator:
    """Asks an authenticator, and turns its faults into errors of one request.

    Args:
        authenticator: That of the package.
        name: The name of its entry point.
    """

    def __init__(self, authenticator: Authenticator, name: str) -> None:
        self._authenticator = authenticator
        self._name = name

    def authenticate(self, credentials: Credentials, /) -> Identity | Awaitable[Identity]:
        """Return the client. Raises GatewayError, InternalError for a bug of the package."""
        try:
            found = self._authenticator.authenticate(credentials)
        except FAULTS as error:  # a package raises anything
            raise self._error(error) from None
        return self._checked(found) if isinstance(found, Identity) else self._later(found)

    async def _later(self, found: Awaitable[Identity]) -> Identity:
        try:
            return self._checked(await found)
        except FAULTS as error:  # a package raises anything
            raise self._error(error) from None

    def _checked(self, found: object) -> Identity:
        if isinstance(found, Identity):
            if is_blank(found.name):
                raise Unauthenticated("a credential is missing: the authenticator named no client")
            return _without_blanks(found)
        raise TypeError(f"expected an Identity, found {type(found).__name__}")

    def _error(self, error: BaseException) -> GatewayError:
        if isinstance(error, GatewayError):
            return error
        return internal_error(error, part=f"authenticator {self._name!r}")


def _without_blanks(identity: Identity) -> Identity:
    """Return the identity without blank groups, labels and tier; itself if it has none."""
    groups = frozenset(names_in(identity.groups))
    labels = {name: value for name, value in identity.labels.items() if not is_blank(value)}
    tier = "" if is_blank(identity.tier) else identity.tier
    if (groups, labels, tier) == (identity.groups, identity.labels, identity.tier):
        return identity
    return structs.replace(identity, groups=groups, labels=labels, tier=tier)  # noqa: TID251  # no call
