"""Triton's metrics of models: their values, and the families of the page.

A serving process tells its own counts and what its servers told, as one document of JSON values.
`TritonNames` adds up those of all processes. Its counters never fall: a server that starts again,
or that is gone, keeps what it had.

Source: Triton metrics documentation, "Inference Request Metrics", and the page of Triton 2.51.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from prometheus_client.core import Metric

from gateway.concurrency.slices import in_slices
from gateway.ir.statistics import ModelStatistics
from gateway.telemetry import names
from gateway.telemetry.families import gauge_family, in_pieces
from gateway.telemetry.usage.model_counts import OTHER, REASONS, version_number

Key = tuple[str, str, str, str]
"""The name of a metric, the model, its version, and the reason of a failure or ""."""
Version = tuple[str, str]
"""A model and its version."""
Document = Mapping[str, Any]

CACHE_METRICS: Final = (
    names.TRITON_CACHE_HITS,
    names.TRITON_CACHE_MISSES,
    names.TRITON_CACHE_HIT_DURATION,
    names.TRITON_CACHE_MISS_DURATION,
)
_SOURCES: Final = 1024
_NS_IN_US: Final = 1000


def counters_of(
    found: ModelStatistics, failures: Mapping[str, float] | None = None, *, is_cached: bool
) -> dict[Key, float]:
    """Return the counters of one version of a model.

    Args:
        found: Its statistics.
        failures: Failed requests by reason; None if the reasons are unknown.
        is_cached: Whether the model has a cache.
    """
    times = found.inference
    values: dict[names.Metric, float] = {
        names.TRITON_SUCCESS: times.success.count,
        names.TRITON_COUNT: found.inference_count,
        names.TRITON_EXEC_COUNT: found.execution_count,
        names.TRITON_DURATION: times.success.ns // _NS_IN_US,
        names.TRITON_QUEUE_DURATION: times.queue.ns // _NS_IN_US,
        names.TRITON_INPUT_DURATION: times.compute_input.ns // _NS_IN_US,
        names.TRITON_INFER_DURATION: times.compute_infer.ns // _NS_IN_US,
        names.TRITON_OUTPUT_DURATION: times.compute_output.ns // _NS_IN_US,
    }
    if is_cached:
        values |= {
            names.TRITON_CACHE_HITS: times.cache_hit.count,
            names.TRITON_CACHE_MISSES: times.cache_miss.count,
            names.TRITON_CACHE_HIT_DURATION: times.cache_hit.ns // _NS_IN_US,
            names.TRITON_CACHE_MISS_DURATION: times.cache_miss.ns // _NS_IN_US,
        }
    if failures is None:
        failures = {OTHER: times.fail.count}
    model = found.name, found.version
    return {(metric.name, *model, ""): value for metric, value in values.items()} | {
        (names.TRITON_FAILURE.name, *model, reason): failures.get(reason, 0) for reason in REASONS
    }


def rows_of(values: Mapping[Key, float] | Mapping[Version, float]) -> Iterator[list[Any]]:
    """Yield values by their keys in a form that JSON has."""
    return ([*key, value] for key, value in values.items())


class _Totals:
    """Counters of several sources, whose sum never falls."""

    def __init__(self) -> None:
        self._ended: Counter[Key] = Counter()
        self._latest: dict[object, dict[Key, float]] = {}

    async def update(self, source: object, rows: Iterable[Any], *, restarts: bool) -> None:
        """Note the values of a source.

        Args:
            source: Identifies it; one that comes back goes on with what it had.
            rows: Its counters.
            restarts: Whether a value that falls begins anew; else it is late.
        """
        latest = self._latest[source] = self._latest.pop(source, {})
        async for name, model, version, reason, value in in_slices(rows):
            key = name, model, version, reason
            before = latest.get(key, 0)
            if restarts and value < before:
                self._ended[key] += before  # type: ignore[assignment]  # a Counter of floats
            latest[key] = value if restarts else max(before, value)
        if len(self._latest) > _SOURCES:
            await self.end(next(iter(self._latest)))

    async def end(self, source: object) -> None:
        """Keep the sum of a source that does not come back, and forget the source."""
        latest = self._latest.get(source, {})
        async for _ in in_slices(range(len(latest))):
            key, value = latest.popitem()
            self._ended[key] += value  # type: ignore[assignment]  # a Counter of floats
        self._latest.pop(source, None)

    async def sums(self) -> dict[str, Counter[tuple[str, ...]]]:
        """Return the sum of all sources, by the name of the metric and the labels."""
        found: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
        counters: list[Mapping[Key, float]] = [self._ended, *self._latest.values()]
        async for (name, *labels), value in in_slices(chain(*(each.items() for each in counters))):
            found[name][tuple(labels)] += value  # type: ignore[assignment]  # a Counter of floats
        return found


class TritonNames:
    """The metrics of all models of all processes, under Triton's names."""

    def __init__(self) -> None:
        self._totals = _Totals()
        self._processes: dict[object, Document] = {}
        self._servers: Sequence[Document] = ()
        self._lock = asyncio.Lock()
        # What was told and is not in the totals, by its source, and whether the source restarts.
        self._news: dict[object, tuple[Iterable[Any], bool]] = {}

    def update(self, process: object, document: Document | None) -> None:
        """Note what a process tells, as `app.server_counts` has it; None for nothing."""
        if document is None:
            return
        self._processes[process] = document
        self._news[process] = document["own"], False
        if document["servers"] is None:  # another process asked
            return
        self._servers = document["servers"]
        for server in self._servers:
            self._news[server["upstream"], server["endpoint"]] = server["counters"], True

    async def process_ended(self, process: object) -> None:
        """Keep the counters of a process that exited."""
        async with self._lock:
            self._processes.pop(process, None)
            await self._add_news()
            await self._totals.end(process)

    async def collect(self) -> Iterator[Metric]:
        """Return the metrics, in pieces."""
        async with self._lock:
            await self._add_news()
            values: dict[str, Counter[tuple[str, ...]]] = await self._totals.sums()
            values[names.TRITON_PENDING.name] = await self._pending()
        return self._families(values)

    async def _add_news(self) -> None:
        while self._news:
            source, news = next(iter(self._news.items()))
            rows, restarts = news
            await self._totals.update(source, rows, restarts=restarts)
            if self._news[source] is news:
                del self._news[source]

    def _families(self, values: Mapping[str, Counter[tuple[str, ...]]]) -> Iterator[Metric]:
        for metric in names.TRITON_METRICS:
            # `PageWriter` writes counters without `_total` where the type is unknown.
            kind = "gauge" if metric is names.TRITON_PENDING else "unknown"
            if values.get(metric.name):
                new = partial(Metric, metric.name, metric.help, kind)
                yield from in_pieces(new, sorted(values[metric.name].items()), _add)
        stale: dict[str, bool] = {}
        for server in self._servers:
            name = server["upstream"]
            stale[name] = stale.get(name, False) or server["is_stale"]
        family = gauge_family(names.COMPAT_STALE)
        for upstream, is_stale in stale.items():
            family.add_metric((upstream,), float(is_stale))
        if stale:
            yield family

    async def _pending(self) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        versions: defaultdict[str, set[str]] = defaultdict(set)

        async def add(rows: Iterable[Any], *, are_counts: bool = True) -> None:
            async for model, version, value in in_slices(rows):
                found[model, version] += value if are_counts else 0
                versions[model].add(version)

        for document in list(self._processes.values()):
            await add(document["pending"])
        waiting = await self._waiting()
        servers = self._servers
        for upstream in dict.fromkeys(server["upstream"] for server in servers):
            instances: Counter[str] = Counter()
            for server in (each for each in servers if each["upstream"] == upstream):
                if server["pending"] is not None:
                    await add(server["pending"])
                    continue
                await add(server["instances"], are_counts=False)
                async for model, _, count in in_slices(server["instances"]):
                    instances[model] += int(count)
            async for model, count in in_slices(instances.items()):
                newest = max(versions[model], key=version_number)
                beyond = max(0, self._sent(upstream, model) - count)
                found[model, newest] += beyond + waiting.pop(model, 0)
        return found

    def _sent(self, upstream: str, model: str) -> int:
        """Return the calls of a model that are at the servers of an upstream."""
        sent = (document["sent"].get(upstream, {}) for document in self._processes.values())
        return sum(each.get(model, 0) for each in sent)

    async def _waiting(self) -> Counter[str]:
        """Return the calls that wait in the gateway, by the name of the model."""
        found: Counter[str] = Counter()
        for document in list(self._processes.values()):
            async for model, count in in_slices(document["arrived"].items()):
                at_servers = sum(each.get(model, 0) for each in document["sent"].values())
                found[model] += max(0, count - at_servers)
        return found


def _add(family: Metric, row: tuple[tuple[str, ...], float]) -> None:
    labels, value = row
    pairs = zip(("model", "version", "reason"), labels, strict=False)
    family.add_sample(
        family.name, {name: each for name, each in pairs if name != "reason" or each}, value
    )
