"""ServerCounts: what a serving process tells for Triton's names of metrics.

Servers are asked when a page is read, at most once a second: for their statistics, which are those
of their own page but for the reasons of failures and the requests that wait; and for that page, if
the configuration names it. Other models have what the process counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

from prometheus_client.parser import text_string_to_metric_families

from gateway.app.build.endpoint_discovery import BuiltEndpoint
from gateway.app.build.models import BuiltModels
from gateway.app.build.upstreams import BuiltUpstream
from gateway.concurrency.slices import in_slices
from gateway.config.models import Config, UpstreamConfig
from gateway.ir.calls import ModelConfigRequest, ModelStatisticsRequest, RepositoryIndexRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import GatewayError, Unsupported
from gateway.ir.metadata import ModelState
from gateway.ir.statistics import ModelStatistics
from gateway.policies.cache import CACHE
from gateway.service import Service
from gateway.telemetry import names
from gateway.telemetry.usage.model_counts import ModelCounts
from gateway.telemetry.usage.triton_names import CACHE_METRICS, counters_of, rows_of
from gateway.transports.http1.fetch import fetch

_TIMEOUT_S: Final = 1.0
_PAUSE_S: Final = 1.0
_CONFIGURATION_S: Final = 30.0
_PAGE_BYTES: Final = 16 << 20
_OK: Final = 200
_REPLACED: Final = frozenset({names.TRITON_FAILURE.name, names.TRITON_PENDING.name})

Version = tuple[str, str]


class Serving(Protocol):
    """What is read of the service graph in force."""

    @property
    def config(self) -> Config: ...  # noqa: D102
    @property
    def server(self) -> Service: ...  # noqa: D102
    @property
    def upstreams(self) -> Mapping[str, BuiltUpstream]: ...  # noqa: D102
    @property
    def models(self) -> BuiltModels: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the configuration of a model says: its instances, and whether it has a cache."""

    instances: int
    is_cached: bool
    until: float


@dataclass(slots=True)
class _ServerReading:
    """What one endpoint told last."""

    asked_at: float = -_PAUSE_S
    is_stale: bool = True
    counters: dict[Any, float] = field(default_factory=dict)
    pending: dict[Version, float] | None = None
    instances: dict[Version, float] = field(default_factory=dict)
    settings: dict[Version, _Settings] = field(default_factory=dict)


class ServerCounts:
    """Tells the counts of this process and of the servers behind it.

    Args:
        graph: Returns the service graph in force.
        counts: The counts of this process.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        graph: Callable[[], Serving],
        counts: ModelCounts,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._graph = graph
        self._counts = counts
        self._clock = clock
        self._servers: dict[tuple[str, str], _ServerReading] = {}
        self._own_models: tuple[Version, ...] | None = None
        self._reading = asyncio.Lock()
        counts.counts_itself = self._counts_itself

    async def document(self, *, asks: bool) -> dict[str, Any]:
        """Return what `TritonNames` adds up.

        Args:
            asks: Whether this process asks the servers; of several workers one does.
        """
        servers = None
        async with self._reading:
            if asks or self._own_models is None:
                await self._list_models()
            if asks:
                servers = await self._ask_all()
            own = await self._own()
            return {
                "own": rows_of(own),
                "pending": list(rows_of(await self._own_pending(own))),
                "arrived": dict(self._counts.arrived),
                "sent": {name: dict(calls.by_model()) for name, calls in self._counts.sent.items()},
                "servers": servers,
            }

    def _counts_itself(self, target: str) -> bool:
        """Return whether the servers of an upstream count; those that never replied count, too."""
        upstream = self._graph().upstreams.get(target)
        if upstream is None:
            return False
        members = upstream.members
        return bool(members) and all(map(_may_count, members))

    async def _list_models(self) -> None:
        """Note the models that no server counts, so that they have values before the first call."""
        call = RepositoryIndexRequest(context=Context(deadline=monotonic() + _TIMEOUT_S))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                entries = await self._graph().server(call)
        except (GatewayError, TimeoutError):
            self._own_models = self._own_models or ()
            return
        counted = {name for server in self._servers.values() for name, _ in server.instances}
        found = {
            (entry.name, entry.version): None
            for entry in entries
            if entry.state is ModelState.READY and entry.name not in counted
        }
        self._own_models = tuple(found)
        self._counts.serve(name for name, _ in found)

    async def _own(self) -> dict[Any, float]:
        config = self._graph().config
        found: dict[Any, float] = {}
        statistics = {
            (one.name, one.version): one async for one in in_slices(self._counts.statistics())
        }
        called = {name for name, _ in statistics}
        async for name, version in in_slices(self._own_models or ()):
            if version or name not in called:
                statistics.setdefault((name, version), ModelStatistics(name=name, version=version))
        async for (name, version), one in in_slices(statistics.items()):
            model = config.models.get(name)
            is_cached = CACHE.of(model) is not None
            is_cached = is_cached or one.inference.cache_miss.count > 0
            failures = self._counts.failures(name, version)
            found |= counters_of(one, failures, is_cached=is_cached)
        return found

    async def _own_pending(self, counters: Mapping[Any, float]) -> dict[Version, float]:
        """Return the inferences that wait, by the newest version of each model."""
        graph, counts = self._graph(), self._counts
        sent = [calls.by_model() for calls in counts.sent.values()]
        found: dict[Version, float] = {}
        newest: dict[str, str] = {}
        own = dict.fromkeys([key[1:3] async for key in in_slices(counters)])
        async for name, version in in_slices(sorted(own)):
            found[name, version] = 0.0
            newest[name] = version
        async for name, version in in_slices(newest.items()):
            if name in graph.config.pipelines:
                continue  # its steps wait, under their own names
            model = graph.models.loadable.get(name)
            running = sum(each[name] for each in sent)
            running += 0 if model is None else model.running()
            found[name, version] = max(0, counts.arrived.get(name, 0) - running)
        return found

    async def _ask_all(self) -> list[dict[str, Any]]:
        graph = self._graph()
        members = [
            (name, graph.config.upstreams[name], member)
            for name, upstream in graph.upstreams.items()
            for member in upstream.members
            if _may_count(member)
        ]
        keys = {(name, member.endpoint.name) for name, _, member in members}
        self._servers = {key: self._servers.get(key) or _ServerReading() for key in keys}
        await asyncio.gather(*(self._ask(*each) for each in members))
        return [
            {
                "upstream": upstream,
                "endpoint": endpoint,
                "is_stale": server.is_stale,
                "counters": rows_of(server.counters),
                "pending": None if server.pending is None else list(rows_of(server.pending)),
                "instances": list(rows_of(server.instances)),
            }
            for (upstream, endpoint), server in self._servers.items()
        ]

    async def _ask(self, upstream: str, config: UpstreamConfig, member: BuiltEndpoint) -> None:
        key = upstream, member.endpoint.name
        server, now = self._servers[key], self._clock()
        if now - server.asked_at < _PAUSE_S:
            return
        server.asked_at = now
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                found, page = await asyncio.gather(
                    self._statistics(server, member), _page(config, member)
                )
        except Unsupported:
            del self._servers[key]
        except (GatewayError, TimeoutError, OSError):
            server.is_stale = True
        else:
            await _note(server, found, page)

    async def _statistics(
        self, server: _ServerReading, member: BuiltEndpoint
    ) -> tuple[ModelStatistics, ...]:
        """Ask for statistics, and for configurations that are unknown or old."""
        context = Context(deadline=monotonic() + _TIMEOUT_S)
        found = await member.questions(ModelStatisticsRequest(context=context))
        now = self._clock()
        versions = [(one.name, one.version) for one in found]
        server.settings = {
            key: known
            for key in versions
            if (known := server.settings.get(key)) is not None and known.until > now
        }
        missing = iter([key for key in versions if key not in server.settings])

        async def ask() -> None:
            for name, version in missing:
                context = Context(deadline=monotonic() + _TIMEOUT_S)
                call = ModelConfigRequest(model=ModelRef(name, version), context=context)
                try:
                    document = (await member.questions(call)).document
                except GatewayError:  # it is unloaded meanwhile
                    document = {}
                server.settings[name, version] = _settings(document, now + _CONFIGURATION_S)

        await asyncio.gather(*(ask() for _ in range(_CONFIGURATIONS)))
        return found


_CONFIGURATIONS: Final = 16
"""How many configurations of models are asked for at the same time."""


def _may_count(member: BuiltEndpoint) -> bool:
    """Return whether a server counts inferences, or has not told yet because it does not reply."""
    identity = member.identity
    return identity.has_statistics or (identity.server is None and not member.endpoint.is_ready)


def _settings(document: Mapping[str, Any], until: float) -> _Settings:
    groups = document.get("instance_group") or ()
    instances = sum(
        int(group.get("count") or 1) * max(1, len(group.get("gpus") or ())) for group in groups
    )
    is_cached = bool((document.get("response_cache") or {}).get("enable"))
    return _Settings(max(1, instances), is_cached, until)


async def _note(
    server: _ServerReading, found: Iterable[ModelStatistics], page: Mapping[Any, float] | None
) -> None:
    """Note what a server told: its statistics, and the samples of its page if it was read."""
    counters: dict[Any, float] = {}
    async for one in in_slices(found):
        key = one.name, one.version
        settings = server.settings[key]
        is_cached = settings.is_cached or one.inference.cache_miss.count > 0
        if page is not None:
            is_cached = (CACHE_METRICS[0].name, *key, "") in page
        counters |= counters_of(one, is_cached=is_cached)
    server.instances = {key: float(each.instances) for key, each in server.settings.items()}
    server.is_stale = False
    server.pending = None
    if page is not None:
        failures = {each: value for each, value in page.items() if each[0] in _REPLACED}
        server.pending = {
            (model, version): value
            for (name, model, version, _), value in failures.items()
            if name == names.TRITON_PENDING.name
        }
        counters |= {
            each: value for each, value in failures.items() if each[0] == names.TRITON_FAILURE.name
        }
    server.counters = counters


async def _page(config: UpstreamConfig, member: BuiltEndpoint) -> dict[Any, float] | None:
    """Return the samples of the metrics page of a server; None if the configuration names none."""
    if not config.metrics:
        return None
    host, address = member.endpoint.name, ""
    at = 0
    if config.resolve == "all":
        address = host.rpartition(":")[0].strip("[]")
    else:
        at = [url.authority for url in config.all_urls].index(host)
    response = await fetch(
        config.metrics[at],
        accept="text/plain",
        timeout_s=_TIMEOUT_S,
        max_bytes=_PAGE_BYTES,
        address=address,
    )
    if response.status != _OK:
        raise OSError(f"the metrics page replied with status {response.status}; expected 200")
    text = bytes(response.view).decode("utf-8", "replace")
    return await asyncio.to_thread(_samples, text)


def _samples(page: str) -> dict[Any, float]:
    """Return the samples of models on a page of Triton.

    Raises:
        OSError: It is no metrics page.
    """
    # The parser adds `_total` to the names of counters.
    try:
        families = list(text_string_to_metric_families(page))
    except ValueError as error:
        raise OSError(f"the metrics page cannot be read: {error}") from error
    return {
        (sample.name.removesuffix("_total"), sample.labels["model"], sample.labels["version"],
         sample.labels.get("reason", "")): sample.value
        for family in families
        for sample in family.samples
        if "model" in sample.labels and "version" in sample.labels
    }  # fmt: skip
