from __future__ import annotations

from gateway.ir.context import Context
from gateway.ir.errors import TooLarge
from gateway.telemetry.call_log import CallRecord
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics


def page(metrics: Metrics) -> str:
    return metrics.page("")[0].decode()


def call(metrics: Metrics, model: str = "m", code: str = "ok", kind: str = "InferRequest") -> None:
    path = CallPath(route="r", target="t", upstream_s=0.001)
    context = Context(protocol="oip.http")
    metrics.call(CallRecord(kind, model, "1", context, path, code, None, 0.002, 1.0))


LABELS = 'kind="InferRequest",model="{}",protocol="oip.http",route="r",target="t"'


def test_counts_calls_by_their_labels() -> None:
    """Two answered calls count twice and fall into their bucket."""
    metrics = Metrics("1")
    call(metrics)
    call(metrics)
    assert f'gateway_requests_total{{code="ok",{LABELS.format("m")}}} 2.0' in page(metrics)
    assert 'le="0.0025",protocol="oip.http",route="r",target="t"} 2.0' in page(metrics)


def test_a_name_that_nobody_serves_is_no_label() -> None:
    """A model that was never answered for cannot make a series."""
    metrics = Metrics("1")
    for number in range(100):
        call(metrics, f"x{number}", "not_found")
    expected = f'gateway_requests_total{{code="not_found",{LABELS.format("_unknown")}}} 100.0'
    assert expected in page(metrics)
    assert "x1" not in page(metrics)


def test_answered_names_make_so_many_series_and_no_more() -> None:
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


def test_a_question_to_the_server_has_no_model() -> None:
    """The label is empty, not unknown."""
    metrics = Metrics("1")
    call(metrics, "", kind="ServerReadyRequest")
    assert 'kind="ServerReadyRequest",model=""' in page(metrics)


def test_counts_refusals_and_the_limit_they_name() -> None:
    """A refused request counts by code, and by the limit that refused it."""
    metrics = Metrics("1")
    metrics.rejected("oip.http", TooLarge("much", limit="tensors"))
    assert 'gateway_refused_requests_total{code="too_large",protocol="oip.http"} 1.0' in page(
        metrics
    )
    assert 'gateway_limit_exceeded_total{limit="tensors",protocol="oip.http"} 1.0' in page(metrics)


def test_counts_requests_that_blocked_the_event_loop() -> None:
    """By protocol and model; a model that never answered is no label."""
    metrics = Metrics("1")
    metrics.allow_models(["m"])
    for model in ("m", "m", "stranger", ""):
        metrics.loop_blocked("oip.http", model, 0.2)
    for model, count in (("m", 2.0), ("_unknown", 1.0), ("", 1.0)):
        line = f'gateway_loop_blocked_requests_total{{model="{model}",protocol="oip.http"}} {count}'
        assert line in page(metrics)


def test_speaks_tritons_names_when_asked() -> None:
    """Dashboards made for Triton find its counters, inference calls only."""
    metrics = Metrics("1", triton=True)
    call(metrics)
    call(metrics, code="upstream")
    call(metrics, kind="ModelReadyRequest")
    text = page(metrics)
    assert 'nv_inference_request_success{model="m",version="1"} 1.0' in text
    assert 'nv_inference_request_failure{model="m",version="1"} 1.0' in text
    assert 'nv_inference_request_duration_us{model="m",version="1"} 4000.0' in text


def test_triton_names_know_no_stranger() -> None:
    """A model that nobody serves, or a version that never answered, is no label there either."""
    metrics = Metrics("1", triton=True)
    metrics.allow_models(["m"])
    call(metrics, "stranger", "not_found")
    call(metrics, "m", "not_found")
    assert "stranger" not in page(metrics)
    assert 'nv_inference_request_failure{model="m",version=""} 1.0' in page(metrics)


def test_gauges() -> None:
    """Readiness of endpoints, and values that are read when asked for."""
    metrics = Metrics("1")
    metrics.upstream_ready("u", "h:1", True)
    metrics.watch("gateway_answer", "What is read.", lambda: 42.0)
    assert 'gateway_upstream_ready{endpoint="h:1",upstream="u"} 1.0' in page(metrics)
    assert "gateway_answer 42.0" in page(metrics)


def test_offers_openmetrics() -> None:
    """A scraper that prefers OpenMetrics gets it."""
    text, content_type = Metrics("1").page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
