"""Who may call the listeners of a process: built from the configuration, and kept up to date.

The files of credentials are compared every second, by content.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.access.authenticator import AccessRules, ListenerAuthenticator, Mode, Proxy
from gateway.access.clients import Clients
from gateway.access.key_file import KeyFile, KeyFileError, read_key_file
from gateway.app.errors import StartError
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig
from gateway.telemetry.reload_metrics import APPLIED, FAILED

log = structlog.get_logger(__name__)

_PERIOD_S: Final = 1.0


def mode_of(listener: ListenerConfig, config: Config) -> Mode:
    """Return whether the clients of a listener need a credential."""
    if listener.authentication is not None:
        return listener.authentication
    security = config.security
    has_kinds = security.keys or security.jwt or security.certificates or security.proxies
    has_clients = any(each.certificates or each.unix_users for each in config.clients.values())
    return "required" if has_kinds or has_clients else "off"


class AccessControl(Collector):
    """What names the clients of all listeners of a process.

    Args:
        loaded: The configuration.

    Raises:
        StartError: A file of credentials cannot be used.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._reloads: Counter[tuple[str, str]] = Counter()
        self._problem: dict[str, str] = {}
        self._keys = self._first_keys(loaded)
        self._rules = self._built()
        self._listeners: dict[str, ListenerAuthenticator] = {}
        self._task: asyncio.Task[None] | None = None

    def authenticator(self, listener: ListenerConfig) -> ListenerAuthenticator | None:
        """Return what names the clients of a listener; None if nobody asks.

        grpcio cannot begin to ask later, so its servers always do.
        """
        found = ListenerAuthenticator(
            listener.name, mode_of(listener, self._loaded.config), self._rules, self._count
        )
        self._listeners[listener.name] = found
        is_late = listener.transport == "reference"
        return found if found.mode != "off" or is_late else None

    def needs_client(self, listener: str) -> bool:
        """Return whether each request of a listener needs a credential."""
        found = self._listeners.get(listener)
        return found is not None and found.mode == "required"

    def prepare(self, loaded: LoadedConfig) -> Callable[[], dict[str, ListenerAuthenticator]]:
        """Read the files of another configuration; return what puts it in force.

        That returns the authenticators of the listeners that ask from then on.

        Raises:
            StartError: A file of credentials cannot be used.
        """
        return partial(self._change, loaded, self._first_keys(loaded))

    def _change(
        self, loaded: LoadedConfig, keys: _WatchedKeys | None
    ) -> dict[str, ListenerAuthenticator]:
        self._loaded, self._keys = loaded, keys
        self._problem.clear()
        self._apply()
        for listener in loaded.config.listeners:
            self._listeners[listener.name].mode = mode_of(listener, loaded.config)
        return {name: each for name, each in self._listeners.items() if each.mode != "off"}

    def status(self) -> list[dict[str, Any]]:
        """Return what is wrong with files of credentials, as warnings."""
        return [
            {"event": "credentials not reloaded", "level": "error", "file": file, "reason": reason}
            for file, reason in self._problem.items()
        ]

    def start(self) -> None:
        """Begin to look at the files."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End that. Harmless the second time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        failures = CounterMetricFamily(
            "gateway_authentication_failures",
            "Requests that were refused for their credentials.",
            labels=("listener", "kind", "reason"),
        )
        for labels, count in self._failures.items():
            failures.add_metric(labels, count)
        yield failures
        reloads = CounterMetricFamily(
            "gateway_access_reloads",
            "Changes of files of credentials: applied, or failed (the old content holds).",
            labels=("file", "outcome"),
        )
        for names, count in self._reloads.items():
            reloads.add_metric(names, count)
        yield reloads

    def _count(self, listener: str, kind: str, reason: str) -> None:
        self._failures[listener, kind, reason] += 1

    # -- the rules

    def _built(self) -> AccessRules:
        config = self._loaded.config
        security = config.security
        keys = security.keys
        return AccessRules(
            Clients(config.clients),
            keys=None if self._keys is None else self._keys.content,
            key_header="x-api-key" if keys is None else keys.header,
            proxies=tuple(
                Proxy(each, [ip_network(one, strict=False) for one in each.addresses])
                for each in security.proxies
            ),
            unlisted_certificates=(
                security.certificates is not None and security.certificates.unlisted == "accept"
            ),
            public_health=security.public_health,
        )

    def _apply(self) -> None:
        self._rules = self._built()
        for each in self._listeners.values():
            each.rules = self._rules

    # -- the files

    @staticmethod
    def _first_keys(loaded: LoadedConfig) -> _WatchedKeys | None:
        config = loaded.config.security.keys
        if config is None:
            return None
        return _WatchedKeys(config.file, loaded.directory / config.file)

    def _files(self) -> Iterator[_WatchedKeys]:
        if self._keys is not None:
            yield self._keys

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self.look()
            except Exception:  # a bug: the next look may succeed
                log.exception("internal error")

    async def look(self) -> None:
        """Read the files that have changed, and use those that are correct."""
        for file in list(self._files()):
            try:
                changed = await asyncio.to_thread(file.read)
            except (OSError, ValueError) as error:
                self._note_failure(file.name, file.reason(error))
                continue
            self._problem.pop(file.name, None)
            if changed and file is self._keys:
                self._reloads[file.name, APPLIED] += 1
                self._apply()
                log.info("credentials reloaded", file=file.name, **file.facts())

    def _note_failure(self, file: str, reason: str) -> None:
        """Log a failure once, and again when its reason changes."""
        if self._problem.get(file) != reason:
            self._problem[file] = reason
            self._reloads[file, FAILED] += 1
            log.error("credentials not reloaded", file=file, reason=reason)


class _WatchedKeys:
    """The key file, compared by content.

    Args:
        name: As in the configuration.
        path: Where it is.

    Attributes:
        content: The last correct content.

    Raises:
        StartError: It cannot be used.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        self._text = b""
        try:
            self._text = path.read_bytes()
            self.content: KeyFile = read_key_file(self._text.decode("utf-8"))
        except (OSError, ValueError) as error:
            raise StartError(f"security.keys.file: {name}: {self.reason(error)}") from error

    def read(self) -> bool:
        """Read it again; return whether it has other, correct content. Raises what is wrong."""
        text = self._path.read_bytes()
        if text == self._text:
            return False
        self.content = read_key_file(text.decode("utf-8"))
        self._text = text
        return True

    def facts(self) -> dict[str, Any]:
        """Return what the log says of the content."""
        return {"keys": len(self.content.keys)}

    @staticmethod
    def reason(error: Exception) -> str:
        """Return what is wrong, without content of the file."""
        if isinstance(error, OSError):
            return str(error.strerror)
        return str(error) if isinstance(error, KeyFileError) else "the file is not UTF-8"
