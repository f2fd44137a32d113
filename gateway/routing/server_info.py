"""Answers about the gateway itself: live, ready, who it is, and which models there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

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
from gateway.routing.balance import Readiness
from gateway.service import Dispatch, Service

log = structlog.get_logger(__name__)

R = TypeVar("R")

Ready = Callable[[], bool]

_NOT_READY = frozenset({ModelState.UNAVAILABLE, ModelState.LOADING, ModelState.UNLOADING})


def _every_model(_name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the gateway says of itself.

    Attributes:
        routes: Readiness of each route.
        readiness: Whether all routes must be ready, or any.
        trends: What was measured lately.
        online: Ready from the start as far as its routes are; else once a caller says so.
        named: Models that the configuration names exactly, with the readiness of their route.
        served: Whether a model that an index lists can be reached here under its name.
        log: Changes what the gateway logs and returns its settings; None: they are not told.
    """

    metadata: ServerMetadata
    routes: Sequence[Ready] = ()
    readiness: Readiness = Readiness.ALL
    trends: Callable[[], Mapping[str, Trend]] = dict
    online: bool = True
    named: Mapping[str, Ready] = field(default_factory=dict)
    served: Callable[[str], bool] = _every_model
    log: Callable[[LogSettings], LogSettings] | None = None


class ServerAnswers:
    """A Service for the calls that are to the server.

    Args:
        options: What to say.
        indexes: Where the index of models comes from: in-process models, and upstreams whose models
            are served under their own names; see `Index`.
    """

    def __init__(self, options: ServerOptions, indexes: Sequence[Index] = ()) -> None:
        self._options = options
        self._indexes = tuple(indexes)
        self._draining = False
        self._online = options.online
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
        """Answer *call*.

        Raises:
            Forbidden: The caller may not say whether the gateway is ready.
            Unsupported: The gateway has no answer to this question.
        """
        return await self._dispatch(call)

    def drain(self) -> None:
        """Be not ready from now on; calls are answered as before."""
        self._draining = True

    def served(self, name: str) -> bool:
        """Return whether a model of an upstream can be reached here under its name."""
        return self._options.served(name)

    def forget(self) -> None:
        """List models anew at the next question: one may have been loaded or unloaded."""
        for index in self._indexes:
            index.forget()

    def ready(self) -> bool:
        """Return whether the gateway can take inference requests."""
        options = self._options
        if self._draining or not self._online:
            return False
        return not options.routes or options.readiness.of([ready() for ready in options.routes])

    async def _live(self, _call: ServerLiveRequest) -> bool:
        return True

    async def _ready(self, _call: ServerReadyRequest) -> bool:
        return self.ready()

    async def _metadata(self, _call: ServerMetadataRequest) -> ServerMetadata:
        return self._options.metadata

    async def _trends(self, _call: ServerTrendsRequest) -> Mapping[str, Trend]:
        return self._options.trends()

    async def _switch(self, call: ServerSwitchRequest) -> None:
        if call.online == self._online:
            return
        word = "online" if call.online else "offline"
        if not call.allowed:
            raise Forbidden(f"this listener does not let its clients set the gateway {word}")
        self._online = call.online
        log.info("switched", to=word, protocol=call.context.protocol)

    async def _log(self, call: LogSettingsRequest) -> LogSettings:
        change = self._options.log
        if change is None:
            raise Unsupported("the gateway does not tell its log settings")
        found = change(call.changes)
        if call.changes:
            log.info("log settings changed", protocol=call.context.protocol)
        return found

    async def _index(self, call: RepositoryIndexRequest) -> tuple[RepositoryEntry, ...]:
        """Join the indexes; the first to list a model and version describes it."""
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
        entries_left = found.values()
        if call.ready_only:
            return tuple(entry for entry in entries_left if entry.state not in _NOT_READY)
        return tuple(entries_left)


class Index:
    """The models that one service lists, remembered for a while.

    Args:
        name: Of the target, for the log.
        service: Asked with a RepositoryIndexRequest.
        ttl_s: How long an answer holds; 0 asks every time, as suits in-process models.
        timeout_s: An answer that takes longer is not waited for.
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
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._entries: tuple[RepositoryEntry, ...] = ()
        self._until = float("-inf")
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """Ask again at the next question."""
        self._until = float("-inf")

    async def entries(self) -> tuple[RepositoryEntry, ...]:
        """Return what the service lists; raises nothing.

        A server that cannot list has none. One that does not answer has those it last listed, as
        unavailable.
        """
        async with self._lock:  # one question at a time, however many ask
            if self._clock() >= self._until:
                self._entries = await self._ask()
                self._until = self._clock() + self._ttl_s
            return self._entries

    async def _ask(self) -> tuple[RepositoryEntry, ...]:
        deadline = self._clock() + self._timeout_s
        call = RepositoryIndexRequest(context=Context(deadline=deadline))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._service(call)
        except Unsupported:
            return ()
        except TimeoutError:
            reason = f"no answer within {self._timeout_s} s"
        except GatewayError as error:
            reason = error.message
        log.warning("models cannot be listed", target=self._name, reason=reason)
        return tuple(
            RepositoryEntry(entry.name, entry.version, ModelState.UNAVAILABLE, reason)
            for entry in self._entries
        )
