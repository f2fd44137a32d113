"""Counting of completed calls, compared with the client library's own metrics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from gateway.ir.context import Context
from gateway.telemetry.call_metrics import CallMetrics
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.call_log import CallRecord
from gateway.telemetry.upstream_metrics import BOUNDS_S
from gateway.telemetry.usage.rolling_stats import RollingStats

BOUNDS = (0.001, 0.25, 1.0)
TIMES = {
    "gateway_upstream_duration_seconds": "Time of an inference in upstreams or in-process models.",
    "gateway_queue_duration_seconds": "Time of an inference in the queues of the gateway.",
    "gateway_overhead_duration_seconds": (
        "Time of an inference in the gateway without queues, upstreams, and sockets, decoding "
        "and encoding on the client's side."
    ),
}
CALL = st.tuples(
    st.tuples(
        st.sampled_from(["r", "s"]),
        st.sampled_from(["m", "n"]),
        st.just("oip.http"),
        st.sampled_from(["InferRequest", "ServerReadyRequest"]),
        st.sampled_from(["ok", "internal"]),
        st.sampled_from(["t", ""]),
    ),
    # Exact in binary: sums do not depend on the order of addition.
    st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0, 64.0]),
    st.sampled_from([0.0, 0.125, 2.0]),
    st.sampled_from([0.0, 0.25, 4.0]),
)


@given(calls=st.lists(CALL, max_size=30))
def test_page_equals_that_of_the_client_library(
    calls: list[tuple[tuple[str, str, str, str, str, str], float, float, float]],
) -> None:
    """The same calls make the same page, values at the bounds of buckets included."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library is half typed
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    metrics = CallMetrics(ours, BOUNDS, trends=RollingStats(), on_limit=lambda *_: None)
    counter = Counter(
        "gateway_requests",
        "Completed calls.",
        ("route", "model", "protocol", "kind", "code", "target"),
        registry=theirs,
    )
    histogram = Histogram(
        "gateway_request_duration_seconds",
        "Time from the decoded call to the complete reply.",
        ("route", "protocol", "kind", "target"),
        buckets=BOUNDS,
        registry=theirs,
    )
    upstream, queue, overhead = [
        Histogram(name, text, ("model",), buckets=BOUNDS_S, registry=theirs)
        for name, text in TIMES.items()
    ]
    metrics.allow_models(["m", "n"])
    for labels, seconds, upstream_s, queued_s in calls:
        route, model, protocol, kind, code, target = labels
        path = CallPath(upstream_s=upstream_s, queued_s=queued_s / 2, batched_s=queued_s / 2)
        path.route, path.target = route, target
        context = Context(protocol=protocol)
        metrics.record(CallRecord(kind, model, "", context, path, code, None, seconds, 1.0))
        counter.labels(*labels).inc()
        histogram.labels(labels[0], labels[2], labels[3], labels[5]).observe(seconds)
        if labels[3] == "InferRequest":
            upstream.labels(labels[1]).observe(upstream_s)
            queue.labels(labels[1]).observe(queued_s)
            overhead.labels(labels[1]).observe(max(0.0, seconds - upstream_s - queued_s))
    assert generate_latest(theirs).splitlines() == generate_latest(ours).splitlines()
