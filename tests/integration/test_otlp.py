"""Metrics and log lines of whole gateways, as a collector of OpenTelemetry receives them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.api.start_error import StartError
from gateway.app import Gateway
from gateway.config.load import load_text
from gateway.ir.errors import GatewayError
from tests.integration.asking_kit import ask, running, urls
from tests.integration.otlp_kit import Collector, collecting, values
from tests.integration.workers_kit import PATIENCE_S
from tests.integration.workers_kit import ask as ask_worker

pytestmark = pytest.mark.slow

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
telemetry: {otlp: {traces: true, metrics: true, logs: true}}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""
A = np.arange(16, dtype=np.int32).reshape(1, 16)
INPUTS = {"INPUT0": A, "INPUT1": A}
INFERENCE = ("kind", "InferRequest")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.urls["grpc"])
        yield found


def points(collector: Collector) -> dict[str, Any]:
    """Return the metrics of the last export, each with its points by their labels."""
    (resource,) = collector.of("/v1/metrics")[-1].resource_metrics
    (scope,) = resource.scope_metrics
    found = {}
    for metric in scope.metrics:
        data = getattr(metric, metric.WhichOneof("data"))
        found[metric.name] = {
            tuple(sorted(values(point.attributes).items())): point for point in data.data_points
        }
    return found


def number(point: Any) -> float:
    return float(getattr(point, point.WhichOneof("value")))


async def test_exported_metrics_match_the_page(collector: Collector) -> None:
    """Counters, gauges and histograms have the labels and values of the metrics page."""
    async with running(CONFIG) as gateway:
        for _ in range(3):
            await ask(urls(gateway, "simple")["oip.http"], "simple", INPUTS)
        page = gateway.metrics.page("")[0].decode()
    found = points(collector)
    compared = set()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = tuple(
                sorted((name, value) for name, value in sample.labels.items() if name != "le")
            )
            if family.name == "gateway_requests":
                assert sample.value == number(found[family.name][labels])
            elif sample.name == "gateway_request_duration_seconds_count":
                assert sample.value == found[family.name][labels].count
            elif sample.labels.get("le") == "0.0001" and family.name in found:
                assert sample.value == found[family.name][labels].bucket_counts[0]
            elif sample.name == "gateway_build_info":
                assert 1.0 == number(found[sample.name][labels])
            else:
                continue
            compared.add(sample.name)
    duration = "gateway_request_duration_seconds"
    expected = {"gateway_requests_total", "gateway_build_info"}
    assert expected | {f"{duration}_count", f"{duration}_bucket"} <= compared
    histogram = next(iter(found["gateway_request_duration_seconds"].values()))
    assert len(histogram.explicit_bounds) + 1 == len(histogram.bucket_counts)
    assert histogram.count == sum(histogram.bucket_counts)
    assert not histogram.HasField("min")


@pytest.mark.usefixtures("json_logs")
async def test_log_lines_have_severity_and_trace(collector: Collector) -> None:
    """The body is the event, a failure is a warning, and the trace is that of the span."""
    async with running(CONFIG) as gateway:
        await ask(urls(gateway, "simple")["oip.http"], "simple", INPUTS)
        with pytest.raises(GatewayError):
            await ask(urls(gateway, "simple")["oip.http"], "nobody", INPUTS)
    records = [
        record
        for request in collector.of("/v1/logs")
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    found = {
        values(record.attributes).get("model"): record
        for record in records
        if (record.body.string_value, values(record.attributes).get("kind"))
        == ("call", "InferRequest")
    }
    assert {"simple": "info", "nobody": "warning"} == {
        model: record.severity_text for model, record in found.items()
    }
    (span,) = [span for span in collector.spans if span.name == "Infer simple"]
    assert span.trace_id == found["simple"].trace_id
    assert (
        values(span.attributes)["gateway.request_id"]
        == (values(found["simple"].attributes)["request_id"])
    )
    assert "started" in {record.body.string_value for record in records}


def test_invalid_export_interval_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
    with pytest.raises(StartError, match="OTEL_METRIC_EXPORT_INTERVAL is 'soon'; expected milli"):
        Gateway(load_text(CONFIG))


async def test_missing_collector_does_not_block_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls succeed, and the stop is not blocked."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with running(CONFIG) as gateway:
        found = await ask(urls(gateway, "simple")["oip.http"], "simple", INPUTS)
        assert (2 * A).tolist() == found["OUTPUT0"].tolist()


def test_workers_export_spans_and_the_supervisor_metrics(
    tmp_path: Path, collector: Collector
) -> None:
    """Each worker has its own resource; the counters add up all workers."""
    path = tmp_path / "workers.yaml"
    path.write_text(CONFIG.replace("version: 1", "version: 1\nworkers: 2"))
    # Not of the fork server, which has the environment of another time.
    command = [sys.executable, "-m", "gateway", "serve", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        events = (json.loads(line) for line in process.stderr)
        address = next(line for line in events if line["event"] == "started")["main.http"]
        for _ in range(20):
            with closing(HTTPConnection(address, timeout=PATIENCE_S)) as connection:
                assert 200 == ask_worker(connection)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert 0 == process.returncode
    assert 20 == len([span for span in collector.spans if span.name == "Infer simple"])
    assert 2 == len({each["service.instance.id"] for each in collector.resources})
    requests = points(collector)["gateway_requests"]
    assert [20] == [number(point) for labels, point in requests.items() if INFERENCE in labels]
