"""Calls to the gateway itself: liveness, readiness, server metadata, and the model index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from gateway.concurrency.ttl_lookup import TtlLookup
from gateway.ir.calls import (
    Call,
    LogSettings,
    LogSettingsRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerSwitchRequest,
    ServerTrendsRequest,
)
from gateway.ir.context import Context
from gateway.ir.errors import Forbidden, GatewayError, Unsupported
from gateway.ir.metadata import ModelState, RepositoryEntry, ServerMetadata, Trend
from gateway.ir.redaction import without_addresses
from gateway.routing.balance import Readiness
from gateway.service import Dispatch, Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

Ready = Callable[[], bool]

_NOT_READY = frozenset({ModelState.UNAVAILABLE, ModelState.LOADING, ModelState.UNLOADING})


def _every_model(_name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What `ServerInfo` reports.

    Attributes:
        routes: Readiness of each route.
        readiness: Whether all routes or any route must be ready.
        obstacle: Returns why the gateway is not ready whatever its routes are; "" for no reason.
        trends: Returns recent measurements.
        online: Report the readiness of the routes from the start; otherwise, not ready until a
            client sets the gateway online.
        named: Models that the configuration names exactly, with the readiness of their route.
        served: Whether clients can reach a listed model under its name.
        log: Changes and returns the gateway's log settings; None to report none.
    """

    metadata: ServerMetadata
    routes: Sequence[Ready] = ()
    readiness: Readiness = Readiness.ALL
    obstacle: Callable[[], str] = str
    trends: Callable[[], Mapping[str, Trend]] = dict
    online: bool = True
    named: Mapping[str, Ready] = field(default_factory=dict)
    served: Callable[[str], bool] = _every_model
    log: Callable[[LogSettings], LogSettings] | None = None


class ServerInfo:
    """A Service for the calls to the gateway itself.

    Args:
        options: What to report.
        indexes: The sources of the model index: in-process models, and upstreams whose models are
            served under their own names.
    """

    def __init__(self, options: ServerOptions, indexes: Sequence[Index] = ()) -> None:
        self._options = options
        self._indexes = tuple(indexes)
        self._is_draining = False
        self._is_online = options.online
        self._dispatch = Dispatch(
            "the gateway",
            {
                ServerLiveRequest: self._live,
                ServerReadyRequest: self._ready,
                ServerMetadataRequest: self._metadata,
                RepositoryIndexRequest: self._index,
                ServerSwitchRequest: self._switch,
                ServerTrendsRequest: self._trends,
                LogSettingsRequest: self._log,
            },
        )

    async def __call__(self, call: Call[R], /) -> R:
        """Handle *call*.

        Raises:
            Forbidden: The caller may not change the gateway's readiness.
            Unsupported: The gateway does not support this call.
        """
        return await self._dispatch(call)

    def drain(self) -> None:
        """Report not ready from now on; calls still succeed."""
        self._is_draining = True

    @property
    def is_online(self) -> bool:
        """Whether no client has set the gateway offline."""
        return self._is_online

    def served(self, name: str) -> bool:
        """Return whether clients can reach a model of an upstream under its name."""
        return self._options.served(name)

    def forget(self) -> None:
        """Discard the cached indexes, because a model may have been loaded or unloaded."""
        for index in self._indexes:
            index.forget()

    def ready(self) -> bool:
        """Return whether the gateway accepts inference requests."""
        return not self.not_ready_reason()

    def not_ready_reason(self) -> str:
        """Return why the gateway accepts no inference requests; "" if it accepts them."""
        options = self._options
        if reason := self._withheld():
            return reason
        if not options.routes or options.readiness.of([ready() for ready in options.routes]):
            return ""
        rule = "none" if options.readiness is Readiness.ANY else "not every one"
        return f"{rule} of the required routes is ready (lifecycle.ready)"

    def _withheld(self) -> str:
        """Return why the gateway is not ready whatever its routes are; "" for no reason."""
        if self._is_draining:
            return "the gateway is stopping"
        if not self._is_online:
            return "a client has set the gateway offline, or not yet online"
        return self._options.obstacle()

    async def _live(self, _call: ServerLiveRequest) -> bool:
        return True

    async def _ready(self, call: ServerReadyRequest) -> bool:
        if call.about is not None:  # its route counts, whatever the others are
            return not self._withheld()
        return self.ready()

    async def _metadata(self, _call: ServerMetadataRequest) -> ServerMetadata:
        return self._options.metadata

    async def _trends(self, _call: ServerTrendsRequest) -> Mapping[str, Trend]:
        return self._options.trends()

    async def _switch(self, call: ServerSwitchRequest) -> None:
        if call.is_online == self._is_online:
            return
        state = "online" if call.is_online else "offline"
        if not call.is_allowed:
            raise Forbidden(f"this listener does not allow clients to set the gateway {state}")
        self._is_online = call.is_online
        log.info("readiness changed by client", to=state, protocol=call.context.protocol)

    async def _log(self, call: LogSettingsRequest) -> LogSettings:
        change = self._options.log
        if change is None:
            raise Unsupported("the gateway does not report its log settings")
        settings = change(call.changes)
        if call.changes:
            log.info("log settings changed", protocol=call.context.protocol)
        return settings

    async def _index(self, call: RepositoryIndexRequest) -> tuple[RepositoryEntry, ...]:
        """Merge the indexes; the first index that lists a model and version provides its entry."""
        found: dict[tuple[str, str], RepositoryEntry] = {}
        for entries in await asyncio.gather(*(index.entries() for index in self._indexes)):
            for entry in entries:
                if self._options.served(entry.name):
                    found.setdefault((entry.name, entry.version), entry)
        listed = {name for name, _ in found}
        for name, ready in self._options.named.items():
            if name not in listed:
                state = ModelState.READY if ready() else ModelState.UNAVAILABLE
                found[name, ""] = RepositoryEntry(name, "", state)
        if call.ready_only:
            return tuple(entry for entry in found.values() if entry.state not in _NOT_READY)
        return tuple(found.values())


class Index:
    """The models that one service lists, cached for a while.

    Args:
        name: Target name for the log.
        service: Handles a RepositoryIndexRequest.
        ttl_s: Time for which a reply is cached; 0 for in-process models.
        timeout_s: Timeout of a request.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        service: Service,
        *,
        ttl_s: float = 10.0,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._service = service
        self._timeout_s = timeout_s
        self._clock = clock
        self._entries: tuple[RepositoryEntry, ...] = ()
        self._lookup: TtlLookup[None, tuple[RepositoryEntry, ...]] = TtlLookup(
            self._fetch, ttl_s, ttl_s, 1, clock
        )

    def forget(self) -> None:
        """Discard the cached entries."""
        self._lookup.forget(None)

    async def entries(self) -> tuple[RepositoryEntry, ...]:
        """Return the entries of the service; never raises.

        The result is empty if the service has no index. If the service fails, the result is its
        last entries, as unavailable.
        """
        self._entries = await self._lookup.get(None) or ()
        return self._entries

    async def _fetch(self, _key: None) -> tuple[RepositoryEntry, ...]:
        deadline = self._clock() + self._timeout_s
        call = RepositoryIndexRequest(context=Context(deadline=deadline))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._service(call)
        except Unsupported:
            return ()
        except TimeoutError:
            reason = shown = f"no response within {self._timeout_s} s"
        except GatewayError as error:
            reason, shown = error_text(error), without_addresses(error).message
        log.warning("models cannot be listed", target=self._name, reason=reason)
        return tuple(
            RepositoryEntry(entry.name, entry.version, ModelState.UNAVAILABLE, shown)
            for entry in self._entries
        )
