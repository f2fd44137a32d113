"""The metrics that the chart's autoscalers ask for, evaluated by Prometheus on the page of a gateway."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli_kit import Running, get
from tests.interop.gateways import serving
from tests.interop.programs import promtool
from tests.unit.release.loading import load

charts = load("charts")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0"}
models: {simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}}
routes: [{name: only, match: {model: simple}, targets: [{model: simple}], in_flight: 1}]
telemetry: {metrics: {compat: [triton]}}
"""
NAMESPACE = "inference"
POD, OTHER_POD = "inference-5d9c7b6f4-x2x4z", "inference-b-7c6d5f8b9-q8w2e"
ROW = {"datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
BODY = {"inputs": [{"name": name, **ROW} for name in ("INPUT0", "INPUT1")]}
Page = dict[str, float]


@pytest.fixture(scope="module")
def scaling() -> dict[str, Any]:
    """Return the resources that scale, by their kind."""
    charts.install_tools()
    found = {}
    for name in ("helm all-values", "helm autoscaling"):
        for document in charts.render(charts.sources()[name]):
            found[document["kind"]] = document.get("spec", {})
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Page]]:
    """Return the page of a gateway before calls that wait for one another, and after them."""
    path = tmp_path_factory.mktemp("scaling") / "gateway.yaml"
    path.write_text(CONFIG)
    with serving(str(path)) as gateway:
        call(gateway)
        first = page_of(gateway)
        clients = [threading.Thread(target=calls, args=(gateway,)) for _ in range(4)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        yield first, page_of(gateway)


def call(gateway: Running) -> None:
    assert get(gateway.url("/v2/models/simple/infer"), BODY)[0] == 200


def calls(gateway: Running) -> None:
    for _ in range(20):
        call(gateway)


def page_of(gateway: Running) -> Page:
    """Return the samples of a page, each with the labels that Prometheus adds in a cluster."""
    with closing(HTTPConnection(gateway.addresses["admin"], timeout=10)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if name.startswith("nv_"):  # the parser adds what OpenMetrics wants
                name = name.removesuffix("_total")
            labels = {**sample.labels, "namespace": NAMESPACE, "pod": POD}
            inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
            found[f"{name}{{{inside}}}"] = sample.value
    return found


def total(page: Page, name: str) -> float:
    return sum(value for key, value in page.items() if key.partition("{")[0] == name)


def evaluate(folder: Path, pages: tuple[Page, Page], query: str, expected: float) -> None:
    """Let Prometheus evaluate a query on scrapes of two minutes, of which the last one is new.

    Another release of the namespace has the same series, and its own pods.
    Prometheus extrapolates a rate to its window, which changes it by less than 2 %.
    """
    first, second = pages
    series = [
        {"series": each, "values": f"{first.get(key, 0):.17g}+0x11 {7 * is_other + value:.17g}"}
        for key, value in second.items()
        if key.startswith(("nv_", "gateway_route_"))
        for is_other, each in enumerate((key, key.replace(POD, OTHER_POD)))
    ]
    close = f"abs(({query}) - {expected!r}) < bool {0.02 * expected + 1e-6!r}"
    samples = [{"labels": "{}", "value": 1}]
    check = {"expr": close, "eval_time": "2m", "exp_samples": samples}
    document = {
        "evaluation_interval": "1m",
        "tests": [{"interval": "10s", "input_series": series, "promql_expr_test": [check]}],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [promtool(), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (query, expected, done.stdout, done.stderr)


def test_keda_reads_the_queue_time_by_success(
    scaling: dict[str, Any], pages: tuple[Page, Page], tmp_path: Path
) -> None:
    """The value is the mean time in queues, in milliseconds, between two scrapes."""
    first, _ = scaling["ScaledObject"]["triggers"]
    success, queue = (
        total(pages[1], name) - total(pages[0], name)
        for name in ("nv_inference_request_success", "nv_inference_queue_duration_us")
    )
    assert success == 80
    assert queue > 0
    evaluate(tmp_path, pages, first["metadata"]["query"], queue / success / 1000)


def test_keda_reads_the_calls_in_flight(
    scaling: dict[str, Any], pages: tuple[Page, Page], tmp_path: Path
) -> None:
    """They are added over routes and pods; no call is in flight any more."""
    _, second = scaling["ScaledObject"]["triggers"]
    evaluate(tmp_path, pages, second["metadata"]["query"], 0.0)


def test_the_pod_autoscaler_names_a_gauge_of_the_page(
    scaling: dict[str, Any], pages: tuple[Page, Page], tmp_path: Path
) -> None:
    """An adapter adds its series over the routes of a pod."""
    (metric,) = [
        each["pods"]["metric"]["name"]
        for each in scaling["HorizontalPodAutoscaler"]["metrics"]
        if each["type"] == "Pods"
    ]
    assert f'{metric}{{route="only",namespace="{NAMESPACE}",pod="{POD}"}}' in pages[1]
    own = f'{metric}{{pod="{POD}"}}'
    evaluate(tmp_path, pages, f"sum({own})", 0.0)
