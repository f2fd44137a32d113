"""The TLS files of one process: watched, renewed, and reported before they expire.

`tls_files` reads the files of one socket. Here is which sockets there are, when
their files are read, and who learns of it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.api.start_error import REASONS, reason_of
from gateway.concurrency.polling import Polling
from gateway.telemetry import names
from gateway.telemetry.families import counter_family, gauge_family
from gateway.telemetry.reload_metrics import APPLIED, FAILED
from gateway.transports.net.tls_files import TlsFiles, TlsUpdate

log = structlog.get_logger(__name__)

CERTIFICATES: Final = "certificates"
"""The sockets whose TLS files were replaced, among the changes of a reload."""

# A pair that is half written is tried again for this time before it is an error.
_PATIENCE_S: Final = 5.0
_DAY_S: Final = 86_400.0
_AHEAD_S: Final = 14 * _DAY_S
_EXPIRES: Final = "certificate expires"


class Certificates(Collector):
    """The TLS files of the sockets of this process.

    Args:
        sockets: Returns the sockets there are now.
        clock: Monotonic seconds.
        now: Seconds since the epoch.
        should_warn: Whether certificates that expire are logged.
    """

    def __init__(
        self,
        sockets: Callable[[], Iterable[TlsFiles]],
        *,
        clock: Callable[[], float] = monotonic,
        now: Callable[[], float] = time.time,  # noqa: TID251  # certificates have calendar times
        should_warn: bool = True,
    ) -> None:
        self._sockets = sockets
        self._clock = clock
        self._now = now
        self._should_warn = should_warn
        self._failing: dict[str, _Failure] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._replaced: dict[str, None] = {}
        self._warned: dict[tuple[str, str, float], float] = {}
        self._lock = asyncio.Lock()
        self._polling = Polling(self._look)

    def start(self) -> None:
        """Report what expires, and begin to look at the files once a second."""
        self._warn()
        self._polling.start()

    async def stop(self) -> None:
        """End that. Harmless the second time."""
        await self._polling.stop()

    async def renew(self) -> None:
        """Read the files that have changed, and put those in force that are complete."""
        async with self._lock:
            for files in list(self._sockets()):
                try:
                    update = await asyncio.to_thread(files.read)
                except REASONS as error:
                    self._note_failure(files.socket, reason_of(error))
                else:
                    self._failing.pop(files.socket, None)
                    if update is not None:
                        self._apply(files, update)

    async def renewed(self, changes: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Renew, and add the replaced sockets to what a reload has changed."""
        await self.renew()
        replaced = sorted({*changes.get(CERTIFICATES, ()), *self.take_replaced()})
        return {**changes, CERTIFICATES: replaced} if replaced else dict(changes)

    def take_replaced(self) -> list[str]:
        """Return the sockets whose files were replaced since the last time."""
        found, self._replaced = sorted(self._replaced), {}
        return found

    def warnings(self) -> list[dict[str, Any]]:
        """Return a warning for each certificate that expires within 14 days, as in the log."""
        return [{"event": _EXPIRES, "level": "warning", **each} for _, each in self._soon_expired()]

    def with_warnings(self, recent: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the warnings of the log, with all those about certificates that expire."""
        return [*self.warnings(), *(each for each in recent if each["event"] != _EXPIRES)]

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        reloads = counter_family(names.TLS_RELOADS)
        for labels, count in self._counts.items():
            reloads.add_metric(labels, count)
        yield reloads
        expiries = gauge_family(names.TLS_CERTIFICATE_EXPIRY)
        for files in self._sockets():
            for path, end in files.expiries.items():
                expiries.add_metric((files.socket, path), end)
        yield expiries

    async def _look(self) -> None:
        await self.renew()
        self._warn()

    def _apply(self, files: TlsFiles, update: TlsUpdate) -> None:
        files.apply(update)
        self._replaced[files.socket] = None
        self._count(files.socket, APPLIED)
        log.info("TLS files replaced", socket=files.socket, files=", ".join(files.tls.files))

    def _note_failure(self, socket: str, reason: str) -> None:
        """Log a failure once it has lasted for some seconds, and again when its reason changes."""
        failure = self._failing.setdefault(socket, _Failure(self._clock()))
        if self._clock() - failure.since < _PATIENCE_S or failure.logged == reason:
            return
        failure.logged = reason
        self._count(socket, FAILED)
        log.error("TLS files not replaced", socket=socket, reason=reason)

    def _count(self, socket: str, outcome: str) -> None:
        self._counts[socket, outcome] = self._counts.get((socket, outcome), 0) + 1

    def _warn(self) -> None:
        """Log the certificates that expire soon, each once a day."""
        for key, values in self._soon_expired() if self._should_warn else ():
            if self._clock() >= self._warned.get(key, self._clock()):
                self._warned[key] = self._clock() + _DAY_S
                log.warning(_EXPIRES, **values)

    def _soon_expired(self) -> Iterator[tuple[tuple[str, str, float], dict[str, str]]]:
        for files in self._sockets():
            for path, end in files.expiries.items():
                if end - self._now() < _AHEAD_S:
                    expires = datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds")
                    values = {"socket": files.socket, "file": path, "expires": expires}
                    yield (files.socket, path, end), values


class _Failure:
    """Files that cannot be used.

    Attributes:
        since: When that was found.
        logged: The reason in the log; "" for none yet.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.logged = ""
