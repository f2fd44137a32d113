"""Aggregating the metrics of several processes."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.ir.context import Context
from gateway.telemetry import names
from gateway.telemetry.aggregation import (
    MetricsAggregator,
    Snapshot,
    family_of,
    snapshot,
    total_of,
)
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.exposition import write_page
from gateway.telemetry.log.call_log import CallRecord
from gateway.telemetry.metrics import Metrics

CALLS = names.REQUESTS.name


def counted(calls: int, *, model: str = "m", ready: bool = True) -> Snapshot:
    """Return the snapshot of a process that served *calls* calls, after transport."""
    metrics = Metrics("1")
    metrics.allow_models([model])
    for _ in range(calls):
        path = CallPath(route="r", target="t", upstream_s=0.0005)
        context = Context(protocol="oip.http")
        metrics.call(CallRecord("InferRequest", model, "", context, path, "ok", None, 0.001, 1.0))
    metrics.upstream_ready("up", "h:1", ready)
    metrics.watch(names.IN_FLIGHT_BYTES, lambda: 10.0 * calls)
    found: Snapshot = orjson.loads(orjson.dumps(list(snapshot(metrics.registry))))
    return found


async def values(metrics: Iterable[Metric]) -> dict[str, float]:
    """Return every sample by its name and labels, as Prometheus reads the page."""
    page, _ = await write_page(metrics, "")
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


REQUESTS = f"{CALLS},code=ok,kind=InferRequest,model={{}},protocol=oip.http,route=r,target=t"
DURATION = "gateway_request_duration_seconds"
LABELS = "protocol=oip.http,route=r,target=t"
BUCKET = f"{DURATION}_bucket,kind=InferRequest,le={{}},{LABELS}"


async def test_exemplars_are_aggregated() -> None:
    """The bucket has the trace of the last process, and the counts are added."""
    totals = MetricsAggregator()
    for process, trace_id in (("one", "a" * 32), ("other", "b" * 32)):
        metrics = Metrics("1")
        path, context = CallPath(trace_id=trace_id), Context(protocol="oip.http")
        record = CallRecord("InferRequest", "", "", context, path, "ok", None, 0.001, 1.0)
        metrics.call(record)
        metrics.exemplify(record)
        totals.update(process, orjson.loads(orjson.dumps(list(snapshot(metrics.registry)))))
    page, _ = await write_page(await totals.collect(), "application/openmetrics-text")
    (line,) = [line for line in page.decode().splitlines() if "trace_id" in line]
    assert f'2.0 # {{trace_id="{"b" * 32}"}} 0.001 ' in line
    assert 'le="0.001"' in line


async def test_counters_and_histograms_are_added_up() -> None:
    """The counts of two processes are one total, bucket by bucket."""
    totals = MetricsAggregator()
    totals.update("one", counted(3))
    totals.update("other", counted(4))
    found = await values(await totals.collect())
    assert 7 == found[REQUESTS.format("m")]
    assert [0, 7, 7] == [found[BUCKET.format(bound)] for bound in ("0.0005", "0.001", "+Inf")]
    assert pytest.approx(0.007) == found[f"{DURATION}_sum,kind=InferRequest,{LABELS}"]


async def test_labels_of_all_processes_are_kept() -> None:
    """Labels that only one process has are not lost."""
    totals = MetricsAggregator()
    totals.update("one", counted(3, model="a"))
    totals.update("other", counted(4, model="b"))
    found = await values(await totals.collect())
    assert (3, 4) == (found[REQUESTS.format("a")], found[REQUESTS.format("b")])


async def test_gauges_are_aggregated_by_their_meaning() -> None:
    """Bytes are added; an upstream is ready if it is ready in all processes."""
    totals = MetricsAggregator()
    totals.update("one", counted(1))
    totals.update("other", counted(2, ready=False))
    found = await values(await totals.collect())
    assert 30 == found["gateway_in_flight_bytes"]
    assert 0 == found["gateway_upstream_ready,endpoint=h:1,upstream=up"]
    assert 1 == found["gateway_build_info,version=1"]


async def test_counts_of_ended_processes_are_kept() -> None:
    """Totals continue when another process replaces an ended one, whose gauges are removed."""
    totals = MetricsAggregator()
    totals.update("first", counted(5))
    await totals.process_ended("first")
    found = await values(await totals.collect())
    assert 5 == found[REQUESTS.format("m")]
    assert "gateway_in_flight_bytes" not in found
    totals.update("second", counted(2))
    totals.update("second", counted(3))
    await totals.process_ended("second")
    await totals.process_ended("second")
    totals.update("third", counted(1))
    assert 9 == (await values(await totals.collect()))[REQUESTS.format("m")]


async def test_ended_process_without_metrics_is_ignored() -> None:
    """A process that never reported metrics adds none."""
    totals = MetricsAggregator()
    await totals.process_ended("nobody")
    assert [] == list(await totals.collect())


async def test_page_of_one_process_is_unchanged() -> None:
    """The aggregated page of one process equals its own page, in both formats."""
    metrics = Metrics("1")
    totals = MetricsAggregator()
    totals.update("one", list(snapshot(metrics.registry)))
    accept = "application/openmetrics-text; version=1.0.0"
    for accept_header in ("", accept):
        page = await write_page(await totals.collect(), accept_header)
        assert metrics.page(accept_header) == page


async def test_gauges_and_counters_by_worker() -> None:
    """Gauges and counters by worker are on the page under their names."""
    metrics = [
        family_of(names.Metric("up", "gauge", "U.", ("worker",)), {"1": 1.0}),
        family_of(names.Metric("starts_total", "counter", "S.", ("worker",)), {"1": 2.0}),
    ]
    assert {"up,worker=1": 1.0, "starts_total,worker=1": 2.0} == await values(metrics)
    assert 7 == total_of([*counted(3), *counted(4)], names.REQUESTS)
