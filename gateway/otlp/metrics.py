"""The metrics of the metrics page as those of OpenTelemetry, exported at intervals.

Names and labels are those of the page; a counter has its name without `_total`, which Prometheus
adds again.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import structlog
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataT,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.own_thread import on_own_thread
from gateway.concurrency.slices import in_slices

log = structlog.get_logger(__name__)

Collect = Callable[[], Awaitable[Iterable[Family]]]

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS: Final = "60000"


def interval_s() -> float:
    """Return the seconds between two exports, as `OTEL_METRIC_EXPORT_INTERVAL` has them.

    Raises:
        ValueError: The variable is not a positive number of milliseconds.
    """
    text = os.environ.get(_INTERVAL, _INTERVAL_MS)
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{_INTERVAL} is {text!r}; expected milliseconds, such as {_INTERVAL_MS}")
    return int(text) / 1e3


class MetricsExport:
    """Exports all metrics at intervals, and when it is closed.

    Args:
        collect: Returns the metrics.
        exporters: Send them.
        resource: The description of this process.
        scope: The name and version of the gateway.
        every_s: Seconds between two exports.
    """

    def __init__(
        self,
        collect: Collect,
        exporters: Sequence[MetricExporter],
        resource: Resource,
        scope: InstrumentationScope,
        every_s: float,
    ) -> None:
        self._collect = collect
        self._exporters = exporters
        self._resource = resource
        self._scope = scope
        self._every_s = every_s
        self._started_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Export from now on."""
        self._task = start_background(self._run(), "export of metrics")

    async def stop(self) -> Callable[[], None]:
        """End the intervals; return a blocking function that exports a last time."""
        if self._task is not None:
            await end_tasks(self._task)
        data = await self._data()

        def finish() -> None:
            self._export(data)
            for exporter in self._exporters:
                exporter.shutdown()

        return finish

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await on_own_thread(self._export, await self._data())
            except Exception:  # a defect, or an exporter of the user: the next time may succeed
                log.exception("metrics not exported")

    async def _data(self) -> MetricsData:
        metrics = await _metrics(await self._collect(), self._started_ns, time.time_ns())
        scope = ScopeMetrics(self._scope, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _export(self, data: MetricsData) -> None:
        for exporter in self._exporters:
            exporter.export(data)  # it logs its failures


async def _metrics(pieces: Iterable[Family], start_ns: int, now_ns: int) -> list[Metric]:
    """Return the metrics of families in pieces, without those that have no samples."""
    found: dict[str, Metric] = {}
    async for piece in in_slices(pieces):
        points = list(_points(piece, start_ns, now_ns))
        if piece.name in found:
            found[piece.name].data.data_points.extend(points)  # type: ignore[union-attr]  # it is a list
        elif points:
            data = _data_of(piece, points)
            found[piece.name] = Metric(piece.name, piece.documentation, None, data)
    return list(found.values())


def _points(
    piece: Family, start_ns: int, now_ns: int
) -> Iterator[HistogramDataPoint] | Iterator[NumberDataPoint]:
    if piece.type == "histogram":
        return _histograms(piece.samples, start_ns, now_ns)
    return (NumberDataPoint(each.labels, start_ns, now_ns, each.value) for each in piece.samples)


def _data_of(family: Family, points: Any) -> DataT:
    if family.type == "histogram":
        return Histogram(points, _CUMULATIVE)
    # Triton's counters are "unknown": they lack the ending of a counter's name.
    is_sum = family.type in {"counter", "unknown"}
    return Sum(points, _CUMULATIVE, is_monotonic=True) if is_sum else Gauge(points)


def _histograms(
    samples: Iterable[Sample], start_ns: int, now_ns: int
) -> Iterator[HistogramDataPoint]:
    """Yield a point for each combination of labels: its buckets, count and sum."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(pair for pair in sample.labels.items() if pair[0] != "le")
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, found in buckets.items():
        totals = [int(total) for _, total in found]
        counts = [total - before for before, total in zip([0, *totals], totals, strict=False)]
        yield HistogramDataPoint(
            dict(labels),
            start_ns,
            now_ns,
            totals[-1],
            sums[labels],
            counts,
            [bound for bound, _ in found[:-1]],
            # The page has neither, and OTLP allows that: type ignored for that reason.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )
