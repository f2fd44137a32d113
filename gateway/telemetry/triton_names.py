"""Triton's metrics of models: their values, and the families of the page.

A serving process tells its own counts and what its servers told, as one document of JSON values.
`TritonNames` adds up those of all processes. Its counters never fall: a server that starts again,
or that is gone, keeps what it had.

Source: Triton metrics documentation, "Inference Request Metrics", and the page of Triton 2.51.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import Metric

from gateway.ir.statistics import ModelStatistics
from gateway.telemetry import names
from gateway.telemetry.families import gauge_family
from gateway.telemetry.model_counts import OTHER, REASONS, version_number

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


def rows_of(values: Mapping[Key, float] | Mapping[Version, float]) -> list[list[Any]]:
    """Return values by their keys in a form that JSON has."""
    return [[*key, value] for key, value in values.items()]


def _of_rows(rows: Iterable[Sequence[Any]]) -> dict[Any, float]:
    return {tuple(key): value for *key, value in rows}


class _Totals:
    """Counters of several sources, whose sum never falls."""

    def __init__(self) -> None:
        self._ended: Counter[Key] = Counter()
        self._latest: dict[object, dict[Key, float]] = {}

    def update(self, source: object, values: Mapping[Key, float], *, restarts: bool) -> None:
        """Note the values of a source.

        Args:
            source: Identifies it; one that comes back goes on with what it had.
            values: Its counters.
            restarts: Whether a value that falls begins anew; else it is late.
        """
        latest = self._latest.pop(source, {})
        for key, value in values.items():
            before = latest.get(key, 0)
            if restarts and value < before:
                self._ended[key] += before  # type: ignore[assignment]  # a Counter of floats
            latest[key] = value if restarts else max(before, value)
        self._latest[source] = latest
        if len(self._latest) > _SOURCES:
            self.end(next(iter(self._latest)))

    def end(self, source: object) -> None:
        """Keep the sum of a source that does not come back, and forget the source."""
        for key, value in self._latest.pop(source, {}).items():
            self._ended[key] += value  # type: ignore[assignment]  # a Counter of floats

    def sums(self) -> dict[Key, float]:
        """Return the sum of all sources."""
        found: Counter[Key] = Counter(self._ended)
        for latest in self._latest.values():
            for key, value in latest.items():
                found[key] += value  # type: ignore[assignment]  # a Counter of floats
        return dict(found)


class TritonNames:
    """The metrics of all models of all processes, under Triton's names."""

    def __init__(self) -> None:
        self._totals = _Totals()
        self._processes: dict[object, Document] = {}
        self._servers: Sequence[Document] = ()

    def update(self, process: object, document: Document | None) -> None:
        """Note what a process tells, as `app.server_counts` has it; None for nothing."""
        if document is None:
            return
        self._processes[process] = document
        self._totals.update(process, _of_rows(document["own"]), restarts=False)
        if document["servers"] is None:  # another process asked
            return
        self._servers = document["servers"]
        for server in self._servers:
            source = server["upstream"], server["endpoint"]
            self._totals.update(source, _of_rows(server["counters"]), restarts=True)

    def process_ended(self, process: object) -> None:
        """Keep the counters of a process that exited."""
        self._processes.pop(process, None)
        self._totals.end(process)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        counters = sorted(self._totals.sums().items())
        pending = self._pending()
        for metric in names.TRITON_METRICS:
            # `encode_page` writes counters without `_total` where the type is unknown.
            is_gauge = metric is names.TRITON_PENDING
            family = Metric(metric.name, metric.help, "gauge" if is_gauge else "unknown")
            if is_gauge:
                for (model, version), value in sorted(pending.items()):
                    family.add_sample(metric.name, {"model": model, "version": version}, value)
            for (name, model, version, reason), value in counters:
                if name == metric.name:
                    labels = {"model": model, "version": version}
                    family.add_sample(name, labels | ({"reason": reason} if reason else {}), value)
            if family.samples:
                yield family
        stale: dict[str, bool] = {}
        for server in self._servers:
            name = server["upstream"]
            stale[name] = stale.get(name, False) or server["is_stale"]
        family = gauge_family(names.COMPAT_STALE)
        for upstream, is_stale in stale.items():
            family.add_metric((upstream,), float(is_stale))
        if stale:
            yield family

    def _pending(self) -> dict[Version, float]:
        found: Counter[Version] = Counter()
        for document in self._processes.values():
            for (model, version), value in _of_rows(document["pending"]).items():
                found[model, version] += value  # type: ignore[assignment]  # a Counter of floats
        waiting = self._waiting()
        for upstream in dict.fromkeys(server["upstream"] for server in self._servers):
            servers = [each for each in self._servers if each["upstream"] == upstream]
            instances: Counter[str] = Counter()
            for server in servers:
                if server["pending"] is not None:
                    for key, value in _of_rows(server["pending"]).items():
                        found[key] += value  # type: ignore[assignment]  # a Counter of floats
                    continue
                for (model, version), count in _of_rows(server["instances"]).items():
                    found[model, version] += 0
                    instances[model] += int(count)
            for model, count in instances.items():
                versions = [version for name, version in found if name == model]
                newest = max(versions, key=version_number)
                beyond = max(0, self._sent(upstream, model) - count)
                found[model, newest] += beyond + waiting.pop(model, 0)
        return dict(found)

    def _sent(self, upstream: str, model: str) -> int:
        """Return the calls of a model that are at the servers of an upstream."""
        sent = (document["sent"].get(upstream, {}) for document in self._processes.values())
        return sum(each.get(model, 0) for each in sent)

    def _waiting(self) -> Counter[str]:
        """Return the calls that wait in the gateway, by the name of the model."""
        found: Counter[str] = Counter()
        for document in self._processes.values():
            for model, count in document["arrived"].items():
                at_servers = sum(each.get(model, 0) for each in document["sent"].values())
                found[model] += max(0, count - at_servers)
        return found
