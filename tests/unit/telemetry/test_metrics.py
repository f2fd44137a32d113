from __future__ import annotations

from gateway.ir.context import Context
from gateway.ir.errors import TooLarge
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.call_log import CallRecord
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.names import Metric


def page(metrics: Metrics) -> str:
    return metrics.page("")[0].decode()


def call(metrics: Metrics, model: str = "m", code: str = "ok", kind: str = "InferRequest") -> None:
    path = CallPath(route="r", target="t", upstream_s=0.001)
    context = Context(protocol="oip.http")
    metrics.call(CallRecord(kind, model, "1", context, path, code, None, 0.002, 1.0))


LABELS = 'kind="InferRequest",model="{}",protocol="oip.http",route="r",target="t"'


def test_calls_are_counted_by_their_labels() -> None:
    """Two calls count twice, and are in their bucket."""
    metrics = Metrics("1")
    call(metrics)
    call(metrics)
    assert f'gateway_requests_total{{code="ok",{LABELS.format("m")}}} 2.0' in page(metrics)
    assert 'le="0.0025",protocol="oip.http",route="r",target="t"} 2.0' in page(metrics)


def test_unknown_model_is_no_label() -> None:
    """A model without a successful call creates no series."""
    metrics = Metrics("1")
    for number in range(100):
        call(metrics, f"x{number}", "not_found")
    expected = f'gateway_requests_total{{code="not_found",{LABELS.format("_unknown")}}} 100.0'
    assert expected in page(metrics)
    assert "x1" not in page(metrics)


def test_number_of_model_series_is_limited() -> None:
    """Beyond the limit even served models share one label."""
    metrics = Metrics("1", series=2)
    for name in ("a", "b", "c"):
        call(metrics, name)
    assert 'model="b"' in page(metrics)
    assert 'model="c"' not in page(metrics)
    assert 'model="_unknown"' in page(metrics)


def test_configured_names_are_labels_from_the_start() -> None:
    """A failing model of the configuration is counted under its name."""
    metrics = Metrics("1")
    metrics.allow_models(["m"])
    call(metrics, "m", "upstream")
    assert f'code="upstream",{LABELS.format("m")}' in page(metrics)


def test_server_call_has_an_empty_model_label() -> None:
    """The label is empty, and not `_unknown`."""
    metrics = Metrics("1")
    call(metrics, "", kind="ServerReadyRequest")
    assert 'kind="ServerReadyRequest",model=""' in page(metrics)


def test_rejections_are_counted_by_code_and_limit() -> None:
    """A rejected request counts by its code, and by the limit that it exceeded."""
    metrics = Metrics("1")
    metrics.rejected("oip.http", TooLarge("much", limit="tensors"))
    assert 'gateway_refused_requests_total{code="too_large",protocol="oip.http"} 1.0' in page(
        metrics
    )
    assert 'gateway_limit_exceeded_total{limit="tensors",protocol="oip.http"} 1.0' in page(metrics)


def test_requests_that_block_the_event_loop_are_counted() -> None:
    """The labels are the protocol and the model, if the model is known."""
    metrics = Metrics("1")
    metrics.allow_models(["m"])
    for model in ("m", "m", "stranger", ""):
        metrics.loop_blocked("oip.http", model, 0.2)
    for model, count in (("m", 2.0), ("_unknown", 1.0), ("", 1.0)):
        line = f'gateway_loop_blocked_requests_total{{model="{model}",protocol="oip.http"}} {count}'
        assert line in page(metrics)


def test_gauges() -> None:
    """The page has the readiness of endpoints, and values that are read at each scrape."""
    metrics = Metrics("1")
    metrics.upstream_ready("u", "h:1", True)
    metrics.watch(Metric("gateway_answer", "gauge", "What is read."), lambda: 42.0)
    assert 'gateway_upstream_ready{endpoint="h:1",upstream="u"} 1.0' in page(metrics)
    assert "gateway_answer 42.0" in page(metrics)


def test_openmetrics_is_served_if_accepted() -> None:
    """A scraper that prefers OpenMetrics gets it."""
    text, content_type = Metrics("1").page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
